"""Results that GPUs store in four parts.

In the kernels that XLA generates, a thread stores four elements if their number is
divisible by four, two if it is even, else one. If the result is a concatenation of four
parts, a thread stores that many elements of each part. With more parts, XLA generates
slower kernels.
"""

PARTS = 4
PER_STORE = 4  # elements that a thread stores if their number is divisible by it
MIN_ELEMENTS = 2**20  # below, the launch of the kernel dominates
