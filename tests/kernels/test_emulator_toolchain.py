"""The emulator compiles an instance once, and leaves nothing half-made."""

import mlx.core as mx
import pytest

from emulator import SKIP_REASON, KernelError, emulate, find_clang, toolchain

pytestmark = pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON)


def copy(body, name="copy"):
    return mx.fast.metal_kernel(name=name, input_names=["a"], output_names=["o"], source=body)


def run(kernel, size, dtype):
    def call(a):
        return kernel(
            inputs=[a],
            template=[("T", dtype)],
            grid=(size, 1, 1),
            threadgroup=(32, 1, 1),
            output_shapes=[(size,)],
            output_dtypes=[dtype],
        )

    return emulate(call, mx.ones((size,), dtype))


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    runtime = toolchain.runtime_library()
    (tmp_path / runtime.name).symlink_to(runtime)
    monkeypatch.setattr(toolchain, "cache_dir", lambda: tmp_path)
    return tmp_path


def test_one_compilation_serves_every_shape(empty_cache):
    # A comment of its own: the process may have loaded an equal kernel already.
    body = "// once\nuint i = thread_position_in_grid.x; o[i] = T(a[i]);"
    for size in (8, 33, 100):
        run(copy(body), size, mx.float32)
    assert len(list(empty_cache.glob("*.so"))) == 2  # the runtime and the kernel
    run(copy(body), 8, mx.float16)
    assert len(list(empty_cache.glob("*.so"))) == 3


def test_what_does_not_compile_leaves_nothing(empty_cache):
    before = set(empty_cache.iterdir())
    with pytest.raises(KernelError, match="unknown_function"):
        run(copy("// never\no[0] = unknown_function(a[0]);"), 8, mx.float32)
    assert set(empty_cache.iterdir()) == before


def test_files_unused_for_long_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain.platformdirs, "user_cache_dir", lambda _: str(tmp_path))
    toolchain.cache_dir.__wrapped__()
    old, fresh = (tmp_path / "emulator" / name for name in ("old.so", "fresh.so"))
    old.touch()
    fresh.touch()
    toolchain.os.utime(old, (0, 0))
    toolchain.cache_dir.__wrapped__()
    assert not old.exists()
    assert fresh.exists()
