"""The bundler puts modules in order and refuses what it does not understand."""

from __future__ import annotations

import pytest

from kvsim.player import bundle as bundler


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(bundler, "FOLDER", tmp_path)
    bundler.bundle.cache_clear()
    yield tmp_path
    bundler.bundle.cache_clear()


def test_an_imported_module_comes_first_and_keeps_its_own_names(folder) -> None:
    (folder / "leaf.js").write_text("const secret = 1;\nexport const value = secret;\n")
    (folder / "top.js").write_text(
        'import { value } from "./leaf.js";\n\nexport function show() { return value; }\n'
    )
    text = bundler.bundle("top")
    assert text.index("module_leaf =") < text.index("module_top =")
    assert "const { value } = module_leaf;" in text
    assert "export const show = module_top.show;" in text
    assert "import " not in text


def test_a_name_that_is_not_exported_is_refused(folder) -> None:
    (folder / "leaf.js").write_text("export const a = 1, b = 2;\n")
    (folder / "top.js").write_text('import { b } from "./leaf.js";\n\nexport const c = b;\n')
    with pytest.raises(ValueError, match=r"top\.js imports b, which leaf\.js does not export"):
        bundler.bundle("top")


def test_an_unknown_form_is_refused_with_its_line(folder) -> None:
    (folder / "top.js").write_text("const a = 1;\nexport { a };\n")
    with pytest.raises(ValueError, match=r"top\.js:2"):
        bundler.bundle("top")


def test_modules_that_import_each_other_are_refused(folder) -> None:
    (folder / "a.js").write_text('import { b } from "./b.js";\n\nexport const a = b;\n')
    (folder / "b.js").write_text('import { a } from "./a.js";\n\nexport const b = a;\n')
    with pytest.raises(ValueError, match="a -> b -> a"):
        bundler.bundle("a")
