"""The search for tensors runs nobody's code, holds nothing afterwards, and keeps to its time."""

from __future__ import annotations

import gc
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.memory.graph import Root, Walk
from gpumagic.memory.roots import Notebook
from gpumagic.memory.scan import Scan, scan
from gpumagic.memory.tensors import TensorReader
from notebook_cells import Cells, cells

torch = pytest.importorskip("torch")


@pytest.fixture
def cell() -> Iterator[Cells]:
    with cells() as made:
        yield made


def search(space: dict[str, Any], **options: Any) -> Scan:
    """Search as for a notebook with these variables."""
    notebook = Notebook(None)
    notebook.namespace = space
    options.setdefault("timeout_s", 60.0)
    return scan(notebook, TensorReader(torch, "cpu"), **options)


def named(space: dict[str, Any], size: int, **options: Any) -> list[str]:
    """Return the names of the storages of so many bytes."""
    found = search(space, count=10_000, **options).storages.get("cpu", ())
    return [one.name for one in found if one.bytes == size]


def kinds(space: dict[str, Any]) -> dict[str, int]:
    """Return the bytes by kind of holder."""
    found: dict[str, int] = {}
    for holder in search(space).holders.get("cpu", ()):
        found[holder.kind] = found.get(holder.kind, 0) + holder.bytes
    return found


# -- by storage --------------------------------------------------------------------------------


def test_views_are_one_storage() -> None:
    """Views of a storage are one entry, and a slice shows how much it keeps for how little."""
    base = torch.zeros(1000)
    space = {"base": base, "rows": list(base.view(10, 100))}
    (one,) = search(space).storages["cpu"]
    assert (one.name, one.bytes, one.own_bytes, one.views) == ("base", 4000, 4000, 11)
    del base, space["base"]
    space["rows"] = space["rows"][3]
    (one,) = search(space).storages["cpu"]
    assert (one.name, one.bytes, one.own_bytes, one.shape) == ("rows", 4000, 400, (100,))


def test_a_parameter_and_its_data() -> None:
    """A Parameter and its ``.data`` are one storage with two names."""
    space = {"weight": torch.nn.Parameter(torch.zeros(777))}
    space["raw"] = space["weight"].data
    (one,) = search(space).storages["cpu"]
    assert {one.name, *one.also} == {"weight", "raw"}


# -- odd objects ---------------------------------------------------------------------------------

RAN: list[str] = []


def hostile(base: type, **members: Any) -> Any:
    """Return a class that notes and refuses all that could be asked of its objects."""

    def refuse(name: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            RAN.append(name)
            raise RuntimeError(name)

        return run

    names = (
        "__getattr__", "__getattribute__", "__eq__", "__ne__", "__len__", "__hash__", "__iter__",
        "__bool__", "__repr__", "__contains__", "__getitem__", "items", "keys", "values",
    )
    space: dict[str, Any] = {name: refuse(name) for name in names}
    space["__class__"] = property(refuse("__class__"))
    return type("Hostile", (base,), {**space, **members})


class Meta(type):
    """A metaclass that refuses to be asked."""

    def refuse(cls, *args: Any) -> Any:
        RAN.append("metaclass")
        raise RuntimeError("metaclass")

    __instancecheck__ = __subclasscheck__ = __eq__ = __hash__ = __repr__ = refuse  # type: ignore[assignment]
    __len__ = __iter__ = __bool__ = refuse


Strange = Meta.__new__(Meta, "Strange", (), {"__module__": property(lambda self: 1 / 0)})


@pytest.fixture
def nothing_runs() -> Iterator[None]:
    """Fail a test if anything of the hostile classes ran, or a warning was given."""
    RAN.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert RAN == []


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("base", [object, dict, list, tuple, set, torch.Tensor])
def test_overrides_are_not_run(base: type) -> None:
    """Objects that refuse every question are passed through and named by their types."""
    kind = hostile(base)
    if base is torch.Tensor:
        one = torch.zeros(777).as_subclass(kind)
    elif base is dict:
        one = kind(x=torch.zeros(777))
    elif base in (list, tuple):
        one = kind([torch.zeros(777)])
    elif base is set:
        one = kind()
        set.add(one, torch.zeros(777))
    else:
        one = kind()
        object.__setattr__(one, "x", torch.zeros(777))
    RAN.clear()
    found = len(named({"one": [one]}, 777 * 4))
    ran = RAN[:]
    del one
    RAN.clear()
    assert (found, ran) == (1, [])


@pytest.mark.usefixtures("nothing_runs")
def test_metaclasses_are_not_asked() -> None:
    """Neither a metaclass's methods nor a class's strange ``__module__`` run."""
    one = object.__new__(Strange)
    object.__setattr__(one, "x", torch.zeros(777))
    assert named({"one": one, "kinds": [Strange, int]}, 777 * 4) == ["one.x"]


@pytest.mark.usefixtures("nothing_runs")
def test_a_dict_that_is_a_property() -> None:
    """A property named ``__dict__`` does not run; what it hides is found by its type's name."""

    def run(self: Any) -> dict[str, Any]:
        RAN.append("__dict__")
        return {}

    kind = type("Hiding", (), {"__dict__": property(run)})
    one = kind()
    one.x = torch.zeros(777)
    assert len(named({"one": one}, 777 * 4)) == 1


@pytest.mark.usefixtures("nothing_runs")
def test_proxies_and_dead_references() -> None:
    """Weak references and proxies hold nothing, dead ones harm nothing."""
    kind = type("Thing", (), {})
    thing, gone = kind(), kind()
    thing.x = torch.zeros(777)
    space = {
        "proxy": weakref.proxy(thing), "dead": weakref.proxy(gone), "ref": weakref.ref(gone),
        "thing": thing,
    }
    del gone
    assert named(space, 777 * 4) == ["thing.x"]


@pytest.mark.usefixtures("nothing_runs")
def test_an_error_with_attributes_of_its_own() -> None:
    """An exception whose ``__traceback__`` and ``args`` are properties is walked all the same."""
    refuse = property(lambda self: RAN.append("error"))
    kind = type("Own", (Exception,), {"__traceback__": refuse, "args": refuse})
    assert named({"error": kind(torch.zeros(777))}, 777 * 4) == ["error.args[0]"]


def test_a_lazy_module_stays_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that loads itself at the first question is not asked one."""
    import types

    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            RAN.append(name)
            return super().__getattribute__(name)

    RAN.clear()
    monkeypatch.setitem(sys.modules, "lazy_module_of_a_test", Lazy("lazy_module_of_a_test"))
    RAN.clear()
    search({})
    assert RAN == []


# -- odd tensors ---------------------------------------------------------------------------------


def fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(777)


def quantized() -> Any:
    return torch.quantize_per_tensor(torch.zeros(777), 0.1, 0, torch.quint8)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (fake, []),
        (lambda: torch.zeros(777, device="meta"), []),
        (lambda: torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (5,)), [8, 16]),
        (lambda: torch.eye(7).to_sparse_csr(), [28, 64, 112]),
        (lambda: torch.eye(7).to_sparse_csc(), [28, 64, 112]),
        (lambda: torch.eye(8).to_sparse_bsr((2, 2)), [40, 64, 64]),
        (lambda: torch.nn.LazyLinear(3, bias=False), []),
        (lambda: torch.nn.parameter.UninitializedBuffer(), []),
        (quantized, [777]),
        (lambda: torch.zeros(0), []),
        (lambda: torch.nn.Parameter(torch.zeros(7)), [28]),
        (lambda: torch.nn.functional.relu(torch.ones(7, requires_grad=True)), [28]),
    ],
)
def test_odd_tensors(make: Callable[[], Any], sizes: list[int]) -> None:
    """Each kind of tensor is read without a warning: its storages, or none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = make()
        gc.collect()
    found = search({"one": one}).storages.get("cpu", ())
    mine = [storage for storage in found if storage.name.startswith("one")]
    assert sorted(storage.bytes for storage in mine) == sizes


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout: Any) -> None:
    """A nested tensor's values are found, in both layouts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = torch.nested.nested_tensor([torch.zeros(300), torch.zeros(477)], layout=layout)
        (name,) = named({"one": one}, 777 * 4)
    assert name.startswith("one")


class Overriding(torch.Tensor):  # type: ignore[misc]
    """A tensor that notes each function of torch's that is called with it."""

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        RAN.append("__torch_function__")
        return super().__torch_function__(func, kinds, args, kwargs or {})


class Wrapper(torch.Tensor):  # type: ignore[misc]
    """A tensor without memory that keeps its values in another one."""

    inner: Any

    @staticmethod
    def __new__(cls, inner: Any, layout: Any = torch.strided) -> Any:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, layout=layout
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        RAN.append("__torch_dispatch__")
        raise RuntimeError("dispatched")


def test_torch_function_is_not_run() -> None:
    """A subclass's ``__torch_function__`` does not see the search."""
    one = torch.zeros(777).as_subclass(Overriding)
    RAN.clear()
    assert named({"one": one}, 777 * 4) == ["one"]
    assert RAN == []


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr])
def test_a_wrapper_is_seen_through(layout: Any) -> None:
    """A wrapper has no storage, and the tensor inside it is named through it."""
    one = Wrapper(torch.zeros(777), layout)
    RAN.clear()
    assert named({"one": one}, 777 * 4) == ["one.inner"]
    assert RAN == []


def test_modes_do_not_see_the_search() -> None:
    """Neither a function mode nor a dispatch mode that is on is called by the search."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Functions(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            RAN.append(str(func))
            return func(*args, **(kwargs or {}))

    class Dispatch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            RAN.append(str(func))
            return func(*args, **(kwargs or {}))

    space = {"a": torch.zeros(777), "b": torch.eye(7).to_sparse(), "c": torch.zeros(3)}
    space["c"].requires_grad_()
    with Functions(), Dispatch():
        RAN.clear()
        found = search(space)
    assert RAN == []
    assert {one.name for one in found.storages["cpu"]} >= {"a", "b", "c"}


def test_a_lazy_clone_is_not_copied() -> None:
    """A tensor that is copied on write stays so, and its memory is found."""
    if not hasattr(torch, "_lazy_clone"):
        pytest.skip("this torch has no lazy clones")
    one = torch.zeros(777)
    two = torch._lazy_clone(one)
    assert sorted(named({"one": one, "two": two}, 777 * 4)) == ["one"]
    assert torch._C._is_cow_tensor(one)
    assert torch._C._is_cow_tensor(two)


def test_tensors_of_function_transforms() -> None:
    """A tensor that vmap or grad has wrapped, kept by the user, harms nothing."""
    kept: list[Any] = []

    def keep(x: Any) -> Any:
        kept.append(x)
        return (x * x).sum()

    torch.vmap(keep)(torch.zeros(3, 5))
    torch.func.grad(keep)(torch.zeros(5))
    inside: list[Scan] = []

    def look(x: Any) -> Any:
        inside.append(search({"x": [x], "other": other}))
        return x.sum()

    other = torch.zeros(777)
    torch.vmap(look)(torch.zeros(3, 5))
    assert "other" in {one.name for one in inside[0].storages["cpu"]}
    assert named({"kept": kept, "other": other}, 777 * 4) == ["other"]


def test_a_checkpointed_graph() -> None:
    """A graph that recomputes its activations is walked."""
    from torch.utils.checkpoint import checkpoint

    x = torch.zeros(777, requires_grad=True)
    y = checkpoint(torch.sin, x, use_reentrant=False)
    found = {one.name: one for one in search({"x": x, "y": y}).storages["cpu"]}
    assert found["y"].has_graph
    assert not found["x"].has_graph


def test_distributed_tensors(tmp_path: Any) -> None:
    """The shard of a DTensor has the name of the DTensor, that of a sharded model the model's."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this torch has no gloo")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        store = f"file://{tmp_path}/group"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        try:
            mesh = init_device_mesh("cpu", (1,))
            one = distribute_tensor(torch.zeros(777), mesh, [Shard(0)])
            assert named({"one": one}, 777 * 4) == ["one"]
            from torch.distributed.fsdp import fully_shard

            model = torch.nn.Linear(37, 21, bias=False)
            fully_shard(model, mesh=mesh)
            assert "model.weight" in named({"model": model}, 37 * 21 * 4)
        finally:
            dist.destroy_process_group()


# -- nothing is left behind ------------------------------------------------------------------------


def test_no_reference_outlives_a_search(cell: Cells) -> None:
    """After a search a deleted tensor is gone at once, wherever it was held."""
    cell.run(
        "gc.disable()\nclass K: pass\nprobes = []\n"
        "def big():\n    t = torch.zeros(777)\n    probes.append(weakref.ref(t))\n    return t",
        "a = big()\nb = {'x': [big()]}\nk = K()\nk.x = big()\n"
        "def outer():\n    x = big()\n    return lambda: x\nf = outer()\n"
        "def g():\n    x = big()\n    yield x\ngen = g()\nnext(gen);\n"
        "def boom():\n    x = big()\n    raise ValueError\n"
        "try: boom()\nexcept ValueError as e: err = e\n"
        "p = torch.nn.Parameter(big())\n(p * 2).sum().backward()",
    )
    probes = cell.space["probes"]
    assert len(probes) == 7
    for _ in range(3):
        cell.report()
    cell.run("del a, b, k, f, gen, err, p")
    assert [probe() for probe in probes] == [None] * 7


def test_a_running_thread_lets_go(cell: Cells) -> None:
    """A variable that a running function deletes after a search is gone, though it was read."""
    cell.run(
        "import threading\nsteps = [threading.Event() for _ in range(4)]\n"
        "def work():\n    x = torch.zeros(777)\n    probes = [weakref.ref(x)]\n"
        "    steps[0].set()\n    steps[1].wait()\n    del x\n    seen.append(probes[0]())\n"
        "seen = []\nthread = threading.Thread(target=work)\nthread.start()\nsteps[0].wait();"
    )
    assert "x in work()" in cell.name(777 * 4)
    cell.run("steps[1].set()", "thread.join()")
    assert cell.space["seen"] == [None]


def test_nothing_grows(cell: Cells) -> None:
    """Reports one after another leave no object more than the first."""
    cell.run("model = torch.nn.Linear(3, 3)\nmodel(torch.ones(3)).sum().backward()",
             "gc.disable()\ndef f():\n    t = torch.zeros(9)\n    class C: pass\n    c = C()\n"
             "    c.c, c.t = c, t\nf()")
    counts = []
    for _ in range(6):
        cell.report()
        counts.append(len(gc.get_objects()))
    assert counts[-1] - counts[2] < 20


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_stays_as_it_was(is_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector is on or off afterwards as before, also if the search fails."""
    (gc.enable if is_on else gc.disable)()
    try:
        search({"x": torch.zeros(3)})
        assert gc.isenabled() is is_on
        monkeypatch.setattr(TensorReader, "facts", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            search({"x": torch.zeros(3)})
        assert gc.isenabled() is is_on
    finally:
        gc.enable()


def test_a_search_that_is_interrupted_holds_nothing() -> None:
    """The traceback of an interrupted search holds none of what was met."""
    x = torch.zeros(777)
    probe = weakref.ref(x)
    space = {"x": [x]}
    del x
    times = iter(range(1_000_000))

    def clock() -> float:
        if next(times) > 12:
            raise KeyboardInterrupt
        return 0.0

    with pytest.raises(KeyboardInterrupt) as info:
        search(space, clock=clock)
    space.clear()
    assert info.value.__traceback__ is not None
    assert probe() is None


def test_no_collection_and_no_destructor(cell: Cells) -> None:
    """The collector's callbacks and the user's ``__del__`` do not run."""
    cell.run(
        "ran = []\nclass D:\n    def __del__(self): ran.append(self)\n"
        "gc.disable()\ndef f():\n    d = D()\n    d.d, d.x = d, torch.zeros(777)\nf()\n"
        "def note(phase, info): ran.append(phase)\ngc.callbacks.append(note)"
    )
    try:
        assert cell.kinds() == {"cycle": "cycle"}
        assert cell.space["ran"] == []
    finally:
        gc.callbacks.remove(cell.space["note"])
        cell.run("gc.collect()")


def test_what_the_user_holds_is_untouched() -> None:
    """A dict of ``locals()``, a suspended generator, gradients and bases stay as they were."""
    seen: list[Any] = []

    def work() -> None:
        x = torch.zeros(777)
        y = [x]
        mine = locals()
        search({})
        seen.append(dict(mine))
        del x, y

    def numbers() -> Iterator[int]:
        x = torch.zeros(5)
        yield 1
        yield len(x)

    work()
    assert set(seen[0]) >= {"x", "y"}
    generator = numbers()
    next(generator)
    weight = torch.zeros(3, requires_grad=True)
    (weight * 2).sum().backward()
    gradient = weight.grad
    view = torch.zeros(9)[2:]
    base = view._base
    search({"generator": generator, "weight": weight, "view": view})
    assert weight.grad is gradient
    assert view._base is base
    assert next(generator) == 5


# -- cycles ---------------------------------------------------------------------------------------

CYCLES = {
    "with a dict": "class C: pass\ndef f():\n    c = C()\n    c.c, c.x = c, torch.zeros(777)",
    "with slots": "class C:\n    __slots__ = 'c', 'x'\n"
                  "def f():\n    c = C()\n    c.c, c.x = c, torch.zeros(777)",
    "of a list": "def f():\n    c = [torch.zeros(777)]\n    c.append(c)",
    "of a function": "def f():\n    x = torch.zeros(777)\n    def g(): return g, x",
    "of a generator": "def f():\n    def g(box):\n        x = torch.zeros(777)\n        yield\n"
                      "    box = []\n    box.append(g(box))\n    next(box[0])",
    "of tensors": "def f():\n    a, b = torch.zeros(700), torch.zeros(77)\n    a.b, b.a = b, a",
    "of many tensors": "class C: pass\ndef f():\n    c = C()\n    c.c = c\n"
                       "    c.x = [torch.zeros(3) for _ in range(257)] + [torch.zeros(6)]",
    "of tensors in a ring": "def f():\n    x = [torch.zeros(3) for _ in range(259)]\n"
                            "    for a, b in zip(x, x[1:] + x[:1]): a.next = b",
    "with a gradient": "class C: pass\ndef f():\n    c = C()\n    c.c = c\n"
                       "    c.x = torch.zeros(388, requires_grad=True)\n"
                       "    c.x.sum().backward()\n    c.g = torch.zeros(1)",
}


@pytest.mark.parametrize("code", CYCLES.values(), ids=CYCLES)
def test_garbage(cell: Cells, code: str) -> None:
    """A cycle that nothing leads to is one, whatever it is made of, and collecting frees it."""
    others = cell.others()
    cell.run(f"gc.disable()\n{code}\nf()")
    (holder,) = cell.device().of("cycle")
    assert holder.bytes == 777 * 4
    assert holder.command == "%gpufree --cpu"
    assert cell.others() <= others
    gc.collect()
    assert cell.device().of("cycle") == ()


def test_a_cycle_that_lives(cell: Cells) -> None:
    """A cycle that a variable, or something in C, leads to is no garbage."""
    others = cell.others()
    cell.run(
        "gc.disable()\nclass C: pass\ndef f(n):\n    c = C()\n    c.c, c.x = c, torch.zeros(n)\n"
        "    return c",
        "mine = f(777)",
    )
    assert cell.kinds() == {"mine": "variable"}
    cell.run(
        "import ctypes\nkept = f(555)\nctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))\n"
        "address = id(kept)\ndel kept"
    )
    try:
        assert cell.kinds() == {"mine": "variable"}
        assert cell.others() == others + 555 * 4
    finally:
        cell.run("ctypes.pythonapi.Py_DecRef(ctypes.cast(address, ctypes.py_object))")


def test_what_only_c_holds(cell: Cells) -> None:
    """A tensor of a thread's local data, or that autograd saved, is held, but not garbage."""
    others = cell.others()
    cell.run(
        "import threading\ngc.disable()",
        "local = threading.local()\nlocal.x = torch.zeros(555)",
        "saved = torch.zeros(333)\ngraph = (torch.ones(333, requires_grad=True) * saved).sum()\n"
        "del saved",
    )
    assert cell.device().of("cycle") == ()
    assert cell.others() - others >= 555 * 4


def test_arrays_of_objects(cell: Cells) -> None:
    """numpy's arrays of objects are looked into, also as one of several variables' elements."""
    pytest.importorskip("numpy")
    cell.run(
        "import numpy\narray = numpy.empty((2, 3), dtype=object)\narray[1, 2] = torch.zeros(777)",
        "box = {'a': numpy.array([None, [torch.zeros(555)]], dtype=object)}",
        "numbers = numpy.zeros(10)",
    )
    assert cell.name(777 * 4) == "array[1, 2]"
    assert cell.name(555 * 4) == "box['a'][1][0]"
    assert cell.kinds() == {"array": "variable", "box": "variable"}


def test_frozen_objects(cell: Cells) -> None:
    """Objects that the collector was told to forget are found through names."""
    cell.run("x = {'a': [torch.zeros(777)]}")
    gc.freeze()
    try:
        assert cell.name(777 * 4) == "x['a'][0]"
    finally:
        gc.unfreeze()


# -- the time it takes --------------------------------------------------------------------------


class Ticking:
    """A clock that goes on by a little at each look at it."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_a_large_heap_is_cut_and_said_so() -> None:
    """A search in too many objects stops in its time, says so, and still counts every tensor."""
    data = [[{"a": [i]}, {"x": torch.zeros(1) if not i % 1000 else None}] for i in range(50_000)]
    x = torch.zeros(777)
    clock = Ticking(0.001)
    found = search({"data": data, "x": x}, clock=clock, timeout_s=0.5)
    assert "not all that your variables hold was looked through" in found.cut
    assert clock.now < 0.8
    assert sum(holder.storages for holder in found.holders["cpu"]) >= 51
    assert "x" in {one.name for one in found.storages["cpu"]}


@pytest.mark.parametrize(
    "data",
    [
        lambda: [{"a": {"b": [i]}} for i in range(200_000)],
        lambda: [[[i] for i in range(2000)] for _ in range(100)],
        lambda: {i: [[i]] for i in range(200_000)},
        lambda: [SimpleNamespace(a=[i], b={"c": [i]}) for i in range(100_000)],
    ],
)
def test_large_containers_come_last(data: Callable[[], Any]) -> None:
    """A model behind a container of very many objects is named before those are looked through."""
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 7, bias=False) for _ in range(20)))
    space = {"data": data(), "trainer": SimpleNamespace(data=data(), model=model)}
    walk = Walk(TensorReader(torch, "cpu").is_tensor, lambda tensor: [], clock=Ticking(0.01))
    roots = [Root("variable", name, value) for name, value in space.items()]
    walk.walk(roots, until=0.5)
    assert len(walk.targets) == 20


def test_plain_data_is_passed_over() -> None:
    """Objects that lead to nothing are not noted one by one, those that lead to a tensor are."""
    data: list[Any] = [{"a": i, "b": [i], "c": (i, f"{i}")} for i in range(3000)]
    data[2345]["b"].append({"deep": [torch.zeros(777)]})
    walk = Walk(TensorReader(torch, "cpu").is_tensor, lambda tensor: [])
    assert walk.walk([Root("variable", "data", data)])
    assert len(walk.targets) == 1
    assert not walk.has_met(data[0])
    assert named({"data": data}, 777 * 4) == ["data[2345]['b'][1]['deep'][0]"]


def test_a_deep_list_takes_no_recursion() -> None:
    """Lists in lists, ten thousand deep, each with a tensor, are walked within a second or so."""
    deep: list[Any] = [torch.zeros(777)]
    for _ in range(10_000):
        deep = [deep, torch.zeros(1)]
    walk = Walk(TensorReader(torch, "cpu").is_tensor, lambda tensor: [])
    walk.walk([Root("variable", "deep", deep)])
    assert len(walk.targets) == 10_001
    assert {walk.root(tensor).name for tensor in walk.targets} == {"deep"}  # type: ignore[union-attr]
    while len(deep) > 1:  # freed one by one
        deep = deep[0]


def test_a_module_of_many_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of one variable of a module are one holder, and it is looked up once."""
    import json

    from gpumagic.memory import scan as module

    calls: list[Any] = []
    real = module.label
    monkeypatch.setattr(module, "label", lambda *args: calls.append(1) or real(*args))
    monkeypatch.setattr("gpumagic.memory.roots._is_own", lambda file: file == json.__file__)
    monkeypatch.setattr(json, "many", [torch.zeros(1) for _ in range(5000)], raising=False)
    (holder,) = [one for one in search({}).holders["cpu"] if one.kind == "module"]
    assert (holder.name, holder.storages, len(calls)) == ("json.many", 5000, 1)
