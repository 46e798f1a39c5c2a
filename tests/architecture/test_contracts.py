"""The import contracts of pyproject.toml hold, and are about the package that is installed.

import-linter reads the import graph itself, imports inside functions and under TYPE_CHECKING
included; this only runs it, so that a broken wall shows in any test run.
"""

import sys

from importlinter.cli import lint_imports

from tests.architecture.tree import PACKAGE, ROOT


def test_the_import_contracts_hold(capsys) -> None:
    import dragoman

    assert dragoman.__file__ == str(PACKAGE / "__init__.py"), "another dragoman is installed"
    path = list(sys.path)
    status = lint_imports(str(ROOT / "pyproject.toml"), no_cache=True, no_logo=True)
    sys.path[:] = path  # import-linter adds the working directory
    assert status == 0, capsys.readouterr().out
