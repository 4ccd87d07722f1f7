"""How fast the operators are, as a share of what the machine can do at all.

    python -m benchmarks run --quick
    python -m benchmarks sweep --seconds 600
    python -m benchmarks scale --quick
    python -m benchmarks train --quick
    python -m benchmarks tpu
    python -m benchmarks compare old.json new.json
    python -m benchmarks plot result.json
    python -m benchmarks tables

None of the operators computes much: they move data, so the limit is the speed of
memory. Every workload is therefore measured together with a baseline, in turns, since
the speed of a machine drifts: a memcpy of the bytes that must move, a memset for
fills. What is reported and compared is the ratio to that baseline of the same moment,
for dml_jax and for its peers alike; absolute times are for orientation.

- `workloads`: what is measured, a table
- `programs`: the functions of a workload: dml_jax's, the plain idiom, the reference
- `candidates`: functions that are ready to be timed, and the baselines
- `peers`: other libraries on the same arrays
- `measure`: warm-up, batches, rounds, quartiles
- `session`: a run over all workloads
- `sweep`: a run over random shapes
- `scaling`: a run over numbers of devices
- `training`: steps of bidirectional networks
- `results`, `compare`, `plot`: the file of a run, and what can be read from it
- `tables`: its figures in documents
- `predictions`: the workloads, compiled for TPUs, of which none is needed
- `tpu_compiler`, `tpu_schedule`: child processes that compile, and what that costs
- `command`: the command line
"""
