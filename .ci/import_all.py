"""Import every module of the package; stand-ins take the place of libraries that are not installed.

So a name that an older Python lacks is found without PyTorch, which has no small build everywhere.
"""

import importlib
import importlib.util
import pkgutil
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock

LIBRARIES = ("msgspec", "safetensors", "tokenizers", "torch", "transformers", "zmq")
"""Of the extra ``executor``."""


class StandIn(MetaPathFinder, Loader):
    """Finds libraries that are not installed, as modules that have every name."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] not in LIBRARIES:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        return _Anything(spec.name)

    def exec_module(self, module):
        pass


class _Anything(ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        # A class, since some are inherited from; its metaclass answers for class attributes.
        return type(name, (_Empty,), {"__module__": self.__name__})


class _Named(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)

    def __or__(cls, other):
        return cls

    def __ror__(cls, other):
        return cls


class _Empty(metaclass=_Named):
    def __init__(self, *_, **__):
        pass

    def __init_subclass__(cls, **_):
        pass

    def __class_getitem__(cls, item):
        return cls

    def __call__(self, *_, **__):
        return self


def main() -> None:
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    sys.meta_path.append(StandIn())
    import treepipe

    names = [each.name for each in pkgutil.walk_packages(treepipe.__path__, "treepipe.")]
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    without = f", with stand-ins for {', '.join(missing)}" if missing else ""
    print(f"Python {sys.version.split()[0]}: {len(names)} modules imported{without}")


main()
