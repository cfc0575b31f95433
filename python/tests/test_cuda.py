"""GPUs: memory and streams that are shared with PyTorch, without copies. Needs a card, the plugin and torch with CUDA."""
import gc

import numpy as np
import pytest
import tessera

if not tessera.cuda.is_available():
    pytest.skip("no GPU of NVIDIA's: " + tessera.why_unavailable("cuda:0"), allow_module_level=True)
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

CUDA = 2  # kDLCUDA
BUSY = 50_000_000  # cycles of a card that spins: some tens of ms


@pytest.fixture(autouse=True)
def settled():
    yield
    torch.cuda.synchronize()
    tessera.cuda.synchronize()
    gc.collect()


@pytest.mark.parametrize("name", ["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"])
def test_both_ways_without_copies(name):
    theirs = (torch.arange(12, device="cuda").reshape(3, 4) % 5).to(getattr(torch, name))
    ours = tessera.from_dlpack(theirs)
    assert ours.data_ptr() == theirs.data_ptr() and ours.dtype.name == name and ours.device == tessera.device("cuda:0")
    assert ours.cpu().tolist() == theirs.cpu().tolist()
    assert ours.__dlpack_device__() == (CUDA, 0)
    back = torch.from_dlpack(ours)
    assert back.data_ptr() == theirs.data_ptr() and torch.equal(back, theirs)
    made = tessera.arange(12, device="cuda").reshape(3, 4).to(name)
    there = torch.from_dlpack(made)
    assert there.data_ptr() == made.data_ptr() and there.cpu().tolist() == made.cpu().tolist()


def test_strides_offsets_and_nothing():
    theirs = torch.randn(4, 6, device="cuda")
    for view in (theirs.t(), theirs[1:, 2:5], theirs[:, ::2], theirs[2, 3], theirs[:0]):
        ours = tessera.from_dlpack(view)
        assert ours.shape == tuple(view.shape) and (view.numel() == 0 or ours.data_ptr() == view.data_ptr())
        np.testing.assert_array_equal(ours.cpu().numpy(), view.cpu().numpy())
        np.testing.assert_array_equal((ours * 2).cpu().numpy(), (view * 2).cpu().numpy())
    ours = tessera.randn(4, 6, device="cuda")
    for view in (ours.t(), ours[1:, 2:5], ours[:, ::2], ours[2, 3], ours[:0]):
        there = torch.from_dlpack(view)
        assert tuple(there.shape) == view.shape
        np.testing.assert_array_equal(there.cpu().numpy(), view.cpu().numpy())


def test_rows_of_halves_that_are_padded():
    ours = tessera.randn(5, 7, device="cuda").half() @ tessera.randn(7, 3, device="cuda").half()
    np.testing.assert_array_equal(torch.from_dlpack(ours).cpu().numpy(), ours.cpu().numpy())


def test_what_is_written_by_one_is_seen_by_the_other():
    theirs = torch.zeros(1 << 20, device="cuda")
    ours = tessera.from_dlpack(theirs)
    ours.fill_(3)
    tessera.cuda.synchronize()
    assert theirs.sum().item() == 3 << 20
    theirs.fill_(4)
    torch.cuda.synchronize()
    assert ours.sum().item() == 4 << 20


@pytest.mark.parametrize("own", [False, True], ids=["default", "another"])
def test_we_wait_for_what_torch_has_queued(own):
    stream = torch.cuda.Stream() if own else torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        for round in range(5):
            theirs = torch.zeros(1 << 20, device="cuda")
            torch.cuda._sleep(BUSY)
            theirs.fill_(round + 1)
            ours = tessera.from_dlpack(theirs)  # asks torch to let our stream wait
            assert not stream.query()  # it is still busy, so that waiting matters
            assert (ours.sum() / (1 << 20)).item() == round + 1


@pytest.mark.parametrize("own", [False, True], ids=["default", "another"])
def test_torch_waits_for_what_we_have_queued(own):
    stream = torch.cuda.Stream() if own else torch.cuda.default_stream()
    x = tessera.randn(4096, 4096, device="cuda")
    with torch.cuda.stream(stream):
        for round in range(5):
            y = x
            for _ in range(10):
                y = (x @ y) * 1e-2
            done = y * 0 + (round + 1)
            there = torch.from_dlpack(done)
            assert not tessera.cuda.current_stream().query()
            assert there.double().mean().item() == round + 1


def test_streams_of_ours():
    side = tessera.cuda.Stream()
    assert side.handle not in (0, tessera.cuda.current_stream().handle)
    theirs = torch.ones(1 << 20, device="cuda")
    with tessera.cuda.stream(side):
        assert tessera.cuda.current_stream().handle == side.handle
        torch.cuda._sleep(BUSY)
        theirs.fill_(2)
        ours = tessera.from_dlpack(theirs)
        assert ours.sum().item() == 2 << 20
    assert tessera.cuda.current_stream().handle != side.handle
    ours.record_stream(tessera.cuda.current_stream())


@pytest.mark.parametrize("stream", [None, 1, 2, -1])
def test_streams_that_a_consumer_names(stream):
    x = tessera.ones(1000, device="cuda")
    capsule = x.__dlpack__(stream=stream, max_version=(1, 1))
    tessera.cuda.synchronize()
    assert torch.utils.dlpack.from_dlpack(capsule).sum().item() == 1000
    external = torch.cuda.Stream()
    there = torch.utils.dlpack.from_dlpack(x.__dlpack__(stream=external.cuda_stream))
    with torch.cuda.stream(external):
        assert there.sum().item() == 1000


def test_streams_that_do_not_exist():
    x = tessera.ones(3, device="cuda")
    for stream in (0, -2):
        with pytest.raises(tessera.Error, match=f"^__dlpack__: {stream} names no stream of cuda:0$"):
            x.__dlpack__(stream=stream)


def test_our_memory_outlives_us():
    for own in (False, True):
        with torch.cuda.stream(torch.cuda.Stream() if own else torch.cuda.default_stream()):
            before = tessera.cuda.memory_allocated()
            there = torch.from_dlpack(tessera.full((1 << 20,), 7.0, device="cuda"))
            gc.collect()
            assert tessera.cuda.memory_allocated() == before + (4 << 20)
            torch.cuda._sleep(BUSY)
            total = there.sum()
            del there  # torch's kernels have not run yet
            gc.collect()
            junk = [tessera.zeros(1 << 20, device="cuda") for _ in range(20)]
            tessera.cuda.synchronize()
            assert total.item() == 7 << 20
            del junk
            gc.collect()
            assert tessera.cuda.memory_allocated() == before


def test_torchs_memory_outlives_it():
    theirs = torch.full((1 << 20,), 7.0, device="cuda")
    before = torch.cuda.memory_allocated()
    ours = tessera.from_dlpack(theirs)
    del theirs
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    junk = [torch.zeros(1 << 20, device="cuda") for _ in range(20)]
    x = tessera.randn(4096, 4096, device="cuda")
    for _ in range(10):
        x = (x @ x) * 1e-2
    total = (ours + x[0, 0] * 0).sum()
    del ours  # our kernels have not run yet: torch gets the memory once they have
    gc.collect()
    junk.append(torch.zeros(1 << 20, device="cuda"))
    assert total.item() == 7 << 20
    del junk
    gc.collect()
    assert torch.cuda.memory_allocated() == before - (4 << 20)


def test_copies_and_other_devices():
    x = tessera.arange(5.0, device="cuda")
    copy = torch.utils.dlpack.from_dlpack(x.__dlpack__(copy=True))
    assert copy.data_ptr() != x.data_ptr() and copy.tolist() == [0, 1, 2, 3, 4]
    on_host = np.from_dlpack(x, device="cpu")
    assert on_host.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(BufferError, match="is not shared with device type 1, number 0"):
        x.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(tessera.Error, match="lies on a GPU; use cpu"):
        x.numpy()


def test_gradients_flow_through_shared_memory():
    weights = torch.randn(64, 32, device="cuda")
    ours = tessera.from_dlpack(weights).requires_grad_()
    (ours * ours).sum().backward()
    grad = torch.from_dlpack(ours.grad)
    torch.testing.assert_close(grad, 2 * weights)
    with pytest.raises(tessera.Error, match="requires a gradient"):
        torch.from_dlpack(ours)


def test_a_module_of_python_on_the_card():
    from tessera import nn, optim
    tessera.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1)).to("cuda")
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    x = tessera.randn(256, 8, device="cuda")
    target = x.sum(1, keepdim=True).tanh()
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    assert tessera.cuda.max_memory_allocated() >= tessera.cuda.memory_allocated() > 0


def test_faults_of_kernels_are_exceptions():
    x = tessera.ones(3, device="cuda")
    with pytest.raises(tessera.Error, match="is out of range for size 3"):
        x.index_select(0, tessera.tensor([5]).to("cuda")).cpu()
    assert x.sum().item() == 3
