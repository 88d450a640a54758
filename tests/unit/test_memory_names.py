"""Tensors are named as a person would say them: by the shortest way that leads to them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest

from notebook_cells import Cells, cells

pytest.importorskip("torch")


@pytest.fixture
def cell() -> Iterator[Cells]:
    with cells() as made:
        yield made


def zeros(count: int) -> str:
    """Return the expression of a tensor of 4 bytes times ``count``."""
    return f"torch.zeros({count})"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("batch = T", "batch"),
        ("batch = [1, (2, T)]", "batch[1][1]"),
        ("results = {12: {'logits': T}}", "results[12]['logits']"),
        ("losses = [torch.zeros(1) for _ in range(41)] + [T]", "losses[41]"),
        ("cache = {('a', 1): T}", "cache[('a', 1)]"),
        ("cache = {('a',): T}", "cache[('a',)]"),
        ("class K: pass\ncache = {K(): T}", "cache[...]"),
        ("keys = {T: 1}", "keys (a key of it)"),
        ("bag = {T}", "bag (an element of it)"),
        ("from collections import deque\nqueue = deque([1, T])", "queue[1]"),
        ("from collections import deque\nclass Q(deque): pass\nqueue = Q([1, T])", "queue[1]"),
        ("from collections import OrderedDict\no = OrderedDict(x=T)", "o['x']"),
        ("from collections import defaultdict\nd = defaultdict(list, x=[T])", "d['x'][0]"),
        ("from collections import namedtuple\nP = namedtuple('P', 'x y')\np = P(1, T)", "p.y"),
        (
            "from collections import namedtuple as n\nclass P(n('P', 'x y')): pass\np = P(1, T)",
            "p.y",
        ),
        ("class S:\n    __slots__ = ('x',)\ns = S()\ns.x = T", "s.x"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass D:\n    x: object\nd = D(T)",
            "d.x",
        ),
        (
            "from dataclasses import dataclass\n@dataclass(slots=True)\nclass D:\n    x: object\n"
            "d = D([T])",
            "d.x[0]",
        ),
        ("class Config:\n    table = T", "Config.table"),
        ("class Config:\n    table = {'x': T}\nconfig = Config()\ndel Config", "config.table['x']"),
        ("import functools\nf = functools.partial(max, T)", "f.args[0]"),
        ("import functools\nf = functools.partial(max, key=T)", "f.keywords['key']"),
        ("class M:\n    def go(self): pass\nm = M()\nm.x = T\ngo = m.go\ndel m", "go.__self__.x"),
        (
            "import functools\n@functools.lru_cache\ndef load(n): return torch.zeros(n)\n"
            "load(777);",
            "load (its lru_cache)",
        ),
        ("err = ValueError('x')\nerr.batch = T", "err.batch"),
        ("err = ValueError(T)", "err.args[0]"),
    ],
)
def test_what_a_variable_holds(cell: Cells, code: str, name: str) -> None:
    """A chain from a variable reads as the expression that leads along it."""
    cell.run(re.sub(r"\bT\b", "torch.zeros(777)", code))
    assert cell.name(777 * 4) == name


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (
            "def outer():\n    acts = torch.zeros(777)\n    def step():\n        return acts\n"
            "    return step\nstep = outer()",
            "acts in the closure of step(), [2] line 3, held by step",
        ),
        (
            "def f(a, x=torch.zeros(777)): pass",
            "x in the defaults of f(), [2] line 1, held by f",
        ),
        (
            "def f(*, x=torch.zeros(777)): pass",
            "x in the defaults of f(), [2] line 1, held by f",
        ),
        (
            "def g():\n    big = [torch.zeros(777)]\n    yield 1\n    yield big\n"
            "gen = g()\nnext(gen)",
            "big[0] in the generator g(), [2] line 1, held by gen",
        ),
        (
            "async def c():\n    big = torch.zeros(777)\n    await stop\n    return big\n"
            "import types\n@types.coroutine\ndef wait():\n    yield\nstop = wait()\n"
            "co = c()\nco.send(None)",
            "big in the coroutine c(), [2] line 1, held by co",
        ),
        (
            "def boom():\n    acts = [torch.zeros(777)]\n    raise ValueError\n"
            "try: boom()\nexcept ValueError as e: err = e",
            "acts[0] in boom(), [2] line 1, held by err",
        ),
        (
            "def boom():\n    acts = [torch.zeros(777)]\n    l = locals()\n    raise ValueError\n"
            "try: boom()\nexcept ValueError as e: err = e",
            "acts[0] in boom(), [2] line 1, held by err",
        ),
    ],
)
def test_what_a_function_holds(cell: Cells, code: str, name: str) -> None:
    """A variable of a function is named with its function, the cell, the line and who holds it."""
    cell.run(code)
    assert cell.name(777 * 4) == name
    cell.run("co.close()" if "co = c()" in code else "")


def test_a_cell_by_the_kernels_file_name(cell: Cells) -> None:
    """The file that ipykernel names a cell by is shown as the cell's number."""
    code = "def outer():\n    x = torch.zeros(777)\n    return lambda: x\nf = outer()"
    cell.shell.compile._filename_map["/tmp/ipykernel_1/2.py"] = 5
    exec(compile(code, "/tmp/ipykernel_1/2.py", "exec"), cell.space)
    assert cell.name(777 * 4).startswith("x in the closure of ")
    assert "[5] line 3" in cell.name(777 * 4)


def test_a_cell_by_ipythons_old_file_name(cell: Cells) -> None:
    """The file name with the number in it is shown as the cell's number."""
    code = "def f(x=torch.zeros(777)): pass"
    exec(compile(code, "<ipython-input-7-abc>", "exec"), cell.space)
    assert cell.name(777 * 4) == "x in the defaults of f(), [7] line 1, held by f"


def test_a_model_and_its_optimizer(cell: Cells) -> None:
    """Parameters are the model's, moments the optimizer's, and the two are one holder."""
    cell.run(
        "model = torch.nn.Sequential(torch.nn.Linear(7, 11, bias=False))\n"
        "model.layers = torch.nn.ModuleList(torch.nn.Linear(5, n, bias=False) for n in (1, 13))\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "model.layers[1](torch.ones(2, 5)).sum().backward()\n"
        "optimizer.step()"
    )
    storages = cell.device().storages
    names = [one.name for one in storages]
    assert "model.layers.1.weight" in names
    assert "model.layers.1.weight.grad" in names
    assert "optimizer.state[...]['exp_avg']" in names
    assert "model.0.weight" in names
    (holder,) = cell.device().holders
    assert holder.roots == ("model", "optimizer")
    assert holder.command == "%gpufree --cpu model optimizer"
    weight = next(one for one in storages if one.name == "model.layers.1.weight")
    assert "optimizer.param_groups[0]['params'][2]" in weight.also


def test_names_of_one_object_are_one_holder(cell: Cells) -> None:
    """Two variables of one object are shown together, as are a trainer and its model."""
    cell.run("x = torch.zeros(777)", "y = x", "class Trainer: pass",
             "model = torch.nn.Linear(5, 7)", "trainer = Trainer()\ntrainer.model = model")
    assert set(cell.kinds()) == {"x, y", "model, trainer"}
    assert cell.names(777 * 4) == ["x", "y"]
    assert cell.names(5 * 7 * 4) == ["model.weight"]


def test_displayed_values(cell: Cells) -> None:
    """A value that was shown and has no name is named by Out."""
    cell.run("torch.zeros(777)")
    assert cell.name(777 * 4) == "Out[2]"
    assert cell.kinds() == {"Out[2]": "output"}


def test_the_users_own_underscore(cell: Cells) -> None:
    """An underscore that the user has bound is a variable."""
    cell.run("_ = torch.zeros(777)", "a = 1")
    assert cell.kinds() == {"_": "variable"}


def test_globals_in_a_variable(cell: Cells) -> None:
    """A variable that holds the namespace itself takes no other variable's tensors."""
    cell.run("everything = globals()", "x = torch.zeros(777)")
    assert cell.names(777 * 4) == ["x"]


def test_plain_values_are_variables(cell: Cells) -> None:
    """A variable whose value the shell has as well, such as None, is the user's."""
    cell.run("a = None", "b = 0", "c = ()")
    assert {"a", "b", "c"} <= {root.name for root in cell.notebook().variables()}


def test_a_modules_variable(cell: Cells, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A module of the user's is a holder by its variable, and so is one of a library."""
    (tmp_path / "own_training.py").write_text(
        "import torch\nbuffers = [torch.zeros(777), torch.zeros(5)]\n"
        "class Config:\n    table = torch.zeros(555)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import json

    cell.run("import own_training, json", "json.hidden = [torch.zeros(333)]")
    try:
        assert cell.name(777 * 4) == "own_training.buffers[0]"
        assert cell.name(555 * 4) == "own_training.Config.table"
        assert cell.name(333 * 4) == "json.hidden[0]"
        assert cell.kinds() == {
            "own_training.buffers": "module", "own_training.Config": "module",
            "json.hidden": "module",
        }
    finally:
        del json.hidden
        del sys.modules["own_training"]


def test_a_threads_variable(cell: Cells) -> None:
    """What another thread's function holds is named with the function and the thread."""
    cell.run(
        "import threading\nready, go = threading.Event(), threading.Event()\n"
        "def work():\n    local = torch.zeros(777)\n    ready.set()\n    go.wait()\n"
        "thread = threading.Thread(target=work, name='worker')\nthread.start()\nready.wait();"
    )
    try:
        assert cell.name(777 * 4) == "local in work(), [2] line 3 in thread worker"
    finally:
        cell.run("go.set()", "thread.join()")


def test_a_long_chain_is_shortened(cell: Cells) -> None:
    """A list linked ten thousand times is walked in the time bound and its name stays short."""
    cell.run(
        "class Node: pass\nhead = node = Node()\n"
        "for _ in range(10_000):\n    node.next = Node()\n    node = node.next\n"
        "node.value = torch.zeros(777)\ndel node"
    )
    name = cell.name(777 * 4)
    assert name.startswith("head.next.next")
    assert name.endswith(".next.value")
    assert "…" in name
    assert len(name) < 120


def test_tensors_in_a_row(cell: Cells) -> None:
    """Tensors that hold each other by attributes a thousand deep are named without recursion."""
    cell.run(
        "first = one = torch.zeros(1)\n"
        "for n in range(1500):\n    one.then = torch.zeros(2)\n    one = one.then\n"
        "one.last = torch.zeros(777)\ndel one"
    )
    assert cell.name(777 * 4).endswith(".last")


def test_long_and_many_digit_keys(cell: Cells) -> None:
    """A key that would fill the screen is cut, whatever it is."""
    cell.run("d = {'k' * 1000: torch.zeros(777)}", "e = {10 ** 5000: torch.zeros(555)}")
    assert cell.name(777 * 4) == "d['" + "k" * 40 + "…']"
    assert len(cell.name(555 * 4)) < 30


def test_tensors_of_a_class_on_the_way(cell: Cells) -> None:
    """A tensor that another one has as an attribute is named by it."""
    cell.run("x = torch.zeros(3)\nx.mask = torch.zeros(777)")
    assert cell.name(777 * 4) == "x.mask"


def test_a_name_that_can_be_evaluated(cell: Cells) -> None:
    """What is said to be Python gives the object when it is evaluated."""
    from gpumagic.memory.graph import Walk
    from gpumagic.memory.naming import Namer
    from gpumagic.memory.tensors import TensorReader, torch_module

    cell.run(
        "model = torch.nn.Sequential(torch.nn.Linear(3, 3))\nmodel.head = torch.nn.Linear(3, 2)\n"
        "data = {'a': [torch.zeros(3)], 2: (torch.zeros(4),)}"
    )
    notebook = cell.notebook()
    reader = TensorReader(torch_module(), "cpu")
    walk = Walk(reader.is_tensor, reader.gradient, notebook.fences())
    walk.walk(notebook.variables())
    names = [
        (name, tensor)
        for tensor in walk.targets
        for name in Namer(walk, notebook.places).names(tensor)
    ]
    said = [name.text for name, _ in names if name.can_evaluate]
    assert "model.head.weight" in said
    assert "data['a'][0]" in said
    for name, tensor in names:
        if name.can_evaluate:
            assert eval(name.text, cell.space) is tensor
