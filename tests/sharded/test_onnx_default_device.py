"""Without a device, an ONNX model is on JAX's default device, here not the first."""

import jax
import numpy as np
import pytest
from assertions import assert_same_bits
from onnx_models import parse, require_close, runtime_outputs

from dml_jax import onnx_backend

# `k` and the numbers of the Reshape are constants of the program, not parameters.
TEXT = """float[2,3] x => float[3,2] y {
  p = Add(x, w)
  k = Constant<value_float = 3.0>()
  q = Mul(p, k)
  shape = Constant<value_ints = [3, 2]>()
  y = Reshape(q, shape)
}"""
ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("kind", ["device", "platform"])
def test_programs_copy_nothing(kind: str) -> None:
    device = jax.devices()[3 if kind == "device" else 0]
    source = parse(TEXT, w=ROWS / 2)
    wanted = runtime_outputs(source, [ROWS])
    with jax.default_device(device if kind == "device" else device.platform):
        model = onnx_backend.prepare(source)
        params, x = model.params, jax.numpy.asarray(ROWS)
        apply = jax.jit(model.apply)
        apply(params, x)
        with jax.transfer_guard("disallow"):
            outputs = apply(params, x)
    assert model.device == device
    assert {array.device for array in (*params.values(), *outputs)} == {device}
    require_close(outputs, wanted, 0)
    assert_same_bits(model.run([ROWS])[0], wanted[0])


def test_a_device_by_name() -> None:
    model = onnx_backend.prepare(parse(TEXT, w=ROWS), "CPU:2")
    assert model.params["w"].device == jax.devices()[2]
