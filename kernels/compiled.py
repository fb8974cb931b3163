"""Decorator `@compiled`: numba's `njit` with a disk cache that ranks share and that notices every source change.

The only way in which dgcl caches machine code; `kernel_cache` reads and writes the entries. The planner may import this
file of the folder and no other. Numba offers no public way to any of this: run the tests below first with another
version of numba.
Called by `rows`, `edge_sums`, `dgcl/transport/precompile`, `dgcl/transport/shared_memory/engine`,
`planner/planner_compiled` and others. Free to change while code is compiled anew when its file, a file inlined into it,
or an imported constant changes (`tests/kernels/test_compiled.py`), and one process compiles while others wait
(`tests/kernels/test_kernel_cache.py`).
"""

import copy
import functools
import gc
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, ParamSpec, TypeVar, overload

from llvmlite import binding
from numba import config, njit, types
from numba.core import compiler, sigutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.np import linalg

from dgcl.kernels.kernel_cache import KernelCache, symbol_of

# Numba loads all of SciPy's linear algebra (20 MB, 0.1 s) only to see whether it is there; who needs it loads it again.
if _ensure_blas := getattr(linalg, "ensure_blas", None):
    linalg.ensure_blas = lambda: None
    from numba.np import arraymath

    linalg.ensure_blas = arraymath.ensure_blas = _ensure_blas

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Function = Callable[_Arguments, _Result]


@overload
def compiled(function: _Function[_Arguments, _Result], /) -> _Function[_Arguments, _Result]: ...
@overload
def compiled(
    signature: Any = None,
    /,
    *,
    inline: bool = True,
    allocates: bool = True,
    entry: bool = True,
    fastmath: Any = False,
) -> Callable[[_Function[_Arguments, _Result]], _Function[_Arguments, _Result]]: ...
def compiled(what: Any = None, /, **options: Any) -> Any:
    """Compile a function for the CPU on first use, without the GIL, and keep the machine code on disk.

    What numba's own cache lacks:

    - **Freshness.** Numba stamps a cached function with the hash of its own file. What was inlined into it from other
      files would go on running after an upgrade that left the caller's file as it was. Here the stamp covers the file,
      those of all compiled functions that it imports (and theirs), and the values of the constants that it imports.
    - **One compiler at a time.** Ranks start together and need the same kernels. The first one locks a file beside the
      cache entry and compiles; the others wait and load. The kernel of the operating system releases the lock of a
      process that dies, so nobody waits for the dead, and who waits hears Ctrl-C.
    - **Read-only places.** Entries are read from every folder of :func:`cache_folders` and written to the first that
      takes them. Where none does, the code stays in memory.
    - **Large callees once.** Numba copies each callee into every caller and compiles it there again. A function
      declared with ``inline=False`` is compiled once; callers jump to it, by a symbol that stays the same in every
      process.
    - **No entry for Python where nobody needs one.** It unpacks each array of each named tuple. A function declared
      with ``entry=False`` is called by compiled code alone.
    - **One signature.** A function may say for which types it is compiled: :func:`compile_all` then makes it before
      anybody calls it, and a call with other types is an error instead of seconds of compiling in the wrong moment.

    As ``@compiled`` for whatever types it is called with, or as ``@compiled(signature)`` for one numba signature only.
    With ``inline=False`` compiled callers jump to it and hold no copy: for all that is more than a few lines long and
    not called in an inner loop.

    With ``allocates=False`` it may make no arrays, and counts no references to those it gets: numba would do so at each
    use of a field of a named tuple, which takes longer than a short loop does.

    With ``entry=False`` only compiled functions call it, which is compiled sooner; a call from Python is a TypeError.

    ``fastmath`` are numba's: what may be done to sums of floats, a set of LLVM's names.
    """
    if isinstance(what, FunctionType):
        return _decorated(what, None)
    return functools.partial(_decorated, signature=what, **options)


def compile_all(*modules: ModuleType) -> None:
    """Compile, or load, every function of ``modules`` that says its signature."""
    for module in modules:
        for value in list(vars(module).values()):
            if isinstance(value, Dispatcher) and value.py_func.__module__ == module.__name__:
                signature = getattr(value, "only_signature", None)
                if signature is not None:
                    value.compile(signature)


def is_on_disk(function: Any) -> bool:
    """Tell whether there is machine code of a compiled function, for whatever types."""
    return bool(function._cache.is_filled())


def entry_point(function: _Function[_Arguments, _Result]) -> _Function[_Arguments, _Result]:
    """The machine code of a function that says its signature, for calls without numba's look at the arguments' types.

    That look takes longer than a short function does. The code takes for granted that arguments are of the types.
    """
    dispatcher: Any = function
    assert dispatcher.has_entry
    return dispatcher.compile(dispatcher.only_signature)


def _decorated(
    function: FunctionType,
    signature: Any,
    inline: bool = True,
    allocates: bool = True,
    entry: bool = True,
    fastmath: Any = False,
) -> Any:
    if config.DISABLE_JIT:
        raise RuntimeError(
            "NUMBA_DISABLE_JIT is set, and dgcl's loops over rows run compiled only: unset it (config.DISABLE_JIT)"
        )
    dispatcher = njit(nogil=True, no_cfunc_wrapper=True, _nrt=allocates, fastmath=fastmath)(function)
    dispatcher._cache = cache = KernelCache(function)
    dispatcher._compiler._customize_flags = _Options
    dispatcher.only_signature, dispatcher.has_entry = signature, entry
    compile_one, call_template = dispatcher.compile, dispatcher.get_call_template

    def without_literals(arguments: Any, keywords: Any) -> Any:
        # Numba would compile f(x, 0) for this very 0, and once more for any integer.
        return call_template(tuple(types.unliteral(argument) for argument in arguments), keywords)

    def compile(types_of_call: Any) -> Any:
        with global_compiler_lock:
            if (
                signature is not None and dispatcher.overloads
            ):  # another thread was first, and closed the list
                return next(iter(dispatcher.overloads.values())).entry_point
            known = set(dispatcher.overloads)
            collecting = gc.isenabled()
            gc.disable()  # it would go through all that numba keeps, again and again: a tenth of compiling
            try:
                entry = compile_one(types_of_call if signature is None else signature)
            finally:
                cache.unlock()
                if collecting:
                    gc.enable()
            if not inline:
                for kinds in dispatcher.overloads.keys() - known:
                    _call_by_symbol(dispatcher.overloads[kinds], symbol_of(function, kinds))
            if signature is not None:
                dispatcher.disable_compile()
        return entry

    def compile_for_arguments(*arguments: Any) -> Any:
        entry = dispatcher.compile(signature)
        declared = sigutils.normalize_signature(signature)[0]
        kinds = [dispatcher.typeof_pyval(argument) for argument in arguments]
        if any(dispatcher.typingctx.can_convert(*pair) is None for pair in zip(kinds, declared, strict=True)):
            raise TypeError(f"{function.__name__} takes {declared} (got {kinds})")
        return entry

    dispatcher.compile, dispatcher.get_call_template = compile, without_literals
    if not entry:
        _leave_out_entry(dispatcher)
    elif signature is not None:
        dispatcher._compile_for_args = compile_for_arguments
    return dispatcher


_DEFAULTS = {name: option.default for name, option in compiler.Flags.options.items()}


class _Options(compiler.Flags):  # type: ignore[misc]
    """Options of a compilation; at each operation, numba looks for a callee that was compiled with equal ones.

    Numba's own comparison takes long, and tells callers with an entry from those without: it compiled callees twice.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Options) and self._but_entry() == other._but_entry()

    def __hash__(self) -> int:
        return hash(self.nrt)

    def _but_entry(self) -> dict[str, Any]:
        return {**_DEFAULTS, **self._values, "no_cpython_wrapper": None}


def _leave_out_entry(dispatcher: Any) -> None:
    """Compile without what unpacks Python's arguments, and refuse to be called by Python."""
    # Not its own options: copies of it (pickled, for instance) are numba's, and would call what is not there.
    dispatcher._compiler.targetoptions = dispatcher.targetoptions | {"no_cpython_wrapper": True}

    def add(result: Any) -> None:  # not to the list in which numba finds what Python may call
        dispatcher.overloads[tuple(result.signature.args)] = result

    def refuse(*_: Any) -> None:
        raise TypeError(f"{dispatcher.__name__} is called by compiled functions alone (entry=False)")

    dispatcher.add_overload, dispatcher._compile_for_args = add, refuse


def _call_by_symbol(result: Any, symbol: str) -> None:
    """Make compiled callers call a function by a symbol of its own, instead of linking a copy of it."""
    described = copy.copy(result.fndesc)
    described.mangled_name = symbol
    address = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
    binding.add_symbol(symbol, address)
    result.target_context.remove_user_function(result.entry_point)
    result.target_context.insert_user_function(result.entry_point, described, ())
