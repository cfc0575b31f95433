"""Ctrl-C ends long work, and leaves a library that works."""
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import tessera

START = """
import signal, time
import tessera
def begin():
    print("begun", flush=True)
"""
BACKWARD = START + """
x = tessera.ones(8, requires_grad=True)
y = x
for _ in range(20000):
    y = y * 0.9999
loss = y.sum()
begin()
try:
    while True:
        loss.backward(retain_graph=True)
except KeyboardInterrupt:
    print("stopped", (tessera.ones(3) + 1).sum().item(), x.grad is None)
"""
LOOP = START + """
import sys
model = tessera.load_onnx(sys.argv[1])
begin()
try:
    model.run({"x": tessera.ones(1)})
except KeyboardInterrupt:
    print("stopped", (tessera.ones(3) + 1).sum().item())
"""
PRODUCTS = START + """
x = tessera.randn(512, 512)
begin()
try:
    while True:
        x @ x
except KeyboardInterrupt:
    print("stopped", (tessera.ones(3) + 1).sum().item())
"""

DOWNLOAD = START + """
import socket, tempfile
listener = socket.create_server(("127.0.0.1", 0))  # which never answers
begin()
try:
    tessera.data.MdsReader(f"http://127.0.0.1:{listener.getsockname()[1]}/x", cache=tempfile.gettempdir() + "/none")
except KeyboardInterrupt:
    print("stopped", (tessera.ones(3) + 1).sum().item())
"""


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    """A field of a message of protobuf."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def port(name, kind, *dims):
    shape = b"".join(field(1, field(1, d)) for d in dims)
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, shape)))


def node(op, inputs, outputs, *attributes):
    return field(1, b"".join(field(1, i) for i in inputs) + b"".join(field(2, o) for o in outputs) + field(4, op)
                 + b"".join(field(5, a) for a in attributes))


def endless_model():
    """A Loop of 900,000 turns, each a few nodes."""
    body = node("Add", ["v", "x"], ["w"]) + node("Identity", ["c"], ["d"]) + field(2, "body") \
        + field(11, port("i", 7)) + field(11, port("c", 9)) + field(11, port("v", 1, 1)) \
        + field(12, port("d", 9)) + field(12, port("w", 1, 1))
    count = field(1, 1) + field(2, 7) + field(7, varint(900_000)) + field(8, "n")
    true = field(1, 1) + field(2, 9) + field(5, varint(1)) + field(8, "t")
    graph = node("Loop", ["n", "t", "x"], ["y"], field(1, "body") + field(20, 5) + field(6, body)) + field(2, "g") \
        + field(5, count) + field(5, true) + field(11, port("x", 1, 1)) + field(12, port("y", 1, 1))
    return field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 17))


@pytest.mark.parametrize("program", [BACKWARD, LOOP, PRODUCTS, DOWNLOAD], ids=["backward", "model", "products", "download"])
def test_control_c_ends_long_work(program, tmp_path):
    path = tmp_path / "loop.onnx"
    path.write_bytes(endless_model())
    run = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           env={"PYTHONPATH": str(pathlib.Path(tessera.__file__).parents[1]), "PATH": ""})
    assert run.stdout.readline() == "begun\n"
    time.sleep(0.3)
    before = time.monotonic()
    run.send_signal(signal.SIGINT)
    said, _ = run.communicate(timeout=60)
    assert said.startswith("stopped 6.0") and run.returncode == 0, said
    assert time.monotonic() - before < 20  # a machine may be busy; the work would take minutes
