"""How fast the operators are, as a share of what the machine can do at all.

    python -m benchmarks --help

None of the operators computes much: they move data, so the limit is the speed of
memory. Every workload is therefore measured together with a baseline, in turns, since
the speed of a machine drifts: a memcpy of the bytes that must move, a memset for
fills. What is reported and compared is the ratio to that baseline of the same moment,
for dml_jax and for its peers alike; absolute times are for orientation.

- `workloads`, `random_shapes`: what is measured
- `programs`: the arrays of a workload, and its functions, of dml_jax and of plain JAX
- `peers`: other libraries on the same arrays
- `measure`: warm-up, batches, rounds, quartiles
- `session`: a run over workloads, and the baselines
- `scaling`, `real_models`, `readers`: runs of programs around the operators
- `tpu_schedule`: what TPU's compiler estimates, without a TPU
- `recurrent`, `recurrent_networks`: bidirectional LSTMs of this and other libraries
- `networks`, `torch_networks`: training networks that were exported from torch
- `results`, `tables`, `plot`, `compare`: the file of a run, and what it tells
- `command`: the command line
"""
