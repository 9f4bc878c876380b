# SPDX-License-Identifier: Apache-2.0
"""`kernelworks report`: pages follow the records, --check says when they do not, and ours do."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_model_records import model_record, tokens, work
from bench_records import measurement, record

from kernelworks import catalog, report_model_plot, report_plot, reporting
from kernelworks.cli import main
from kernelworks.errors import RepositoryError

ROOT = catalog.find_root(Path(__file__))
SHORT = f"{reporting.START}toy-cpu form=short -->\n{reporting.END}\n"
PLOTS = f"{reporting.START}toy-cpu form=plots -->\n{reporting.END}\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one record, and pages that ask for it."""
    (tmp_path / "kernels/toy").mkdir(parents=True)
    (tmp_path / "docs/results").mkdir(parents=True)
    (tmp_path / "docs/results/toy-cpu.json").write_text(record(measurement()).to_json())
    (tmp_path / "README.md").write_text(f"# Before\n\n{SHORT}\nafter\n")
    (tmp_path / "kernels/toy/CARD.md").write_text(SHORT)
    (tmp_path / "docs/results.md").write_text(f"{PLOTS}\n{SHORT.replace('short', 'full')}")
    return tmp_path


def report(root: Path, *words: str) -> int:
    return main(["report", "--root", str(root), *words])


def test_the_documents_of_this_repository_follow_its_records() -> None:
    """Nothing in a table is typed by hand: what `kernelworks report` would change is none."""
    assert [f"{each.path.relative_to(ROOT)} {each.what}" for each in reporting.differences(ROOT)] == []


def test_pages_and_plots_are_written_once(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    assert report(root, "--check") == reporting.STALE
    said = capsys.readouterr()
    assert "README.md differs from the records\n" in said.out
    assert "kernels/toy/CARD.md differs from the records\n" in said.out
    assert "docs/results/toy-cpu-bars-dark.svg is not a plot of the records\n" in said.out
    assert "run `kernelworks report`" in said.err
    assert "2.00x" not in (root / "README.md").read_text()

    assert report(root) == 0
    assert "README.md differs from the records: written" in capsys.readouterr().out
    text = (root / "README.md").read_text()
    assert text.startswith("# Before\n\n<!-- kernelworks:report toy-cpu form=short -->\n| case |")
    assert text.endswith("<!-- /kernelworks:report -->\n\nafter\n")
    assert "2.00x" in text
    plots = {path.name for path in (root / "docs/results").glob("*.svg")}
    assert plots == {
        f"toy-cpu-{kind}-{theme}.svg" for kind in report_plot.KINDS for theme in report_plot.THEMES
    }
    page = (root / "docs/results.md").read_text()
    assert '<source media="(prefers-color-scheme: dark)" srcset="results/toy-cpu-bars-dark.svg">' in page

    assert report(root, "--check") == 0
    assert report(root) == 0
    assert capsys.readouterr().out == ""


def test_a_changed_record_or_page_is_found(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    assert report(root) == 0
    page = root / "README.md"
    page.write_text(page.read_text().replace("2.00x", "3.00x"))
    capsys.readouterr()
    assert report(root, "--check") == reporting.STALE
    assert capsys.readouterr().out == "README.md differs from the records\n"
    assert report(root) == 0

    (root / "docs/results/toy-cpu.json").write_text(record(measurement(ours=5.0)).to_json())
    capsys.readouterr()
    assert report(root, "--check") == reporting.STALE
    assert len(capsys.readouterr().out.splitlines()) == 3 + 4


def test_a_plot_that_no_page_asks_for_is_removed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "docs/results.md").unlink()
    plot = root / "docs/results/toy-cpu-bars-dark.svg"
    plot.write_text("<svg/>")
    assert report(root) == 0
    assert "toy-cpu-bars-dark.svg is a plot that no page asks for: removed" in capsys.readouterr().out
    assert not plot.exists()


def test_a_page_that_only_talks_about_blocks_is_left_alone(root: Path) -> None:
    (root / "docs/about.md").write_text(f"    {SHORT}    {reporting.END}\nand `{reporting.START}... -->`\n")
    assert not [each for each in reporting.differences(root) if each.path.name == "about.md"]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            f"{reporting.START}form=short -->\n{reporting.END}\n",
            "README.md: kernelworks:report names no record",
        ),
        (f"{reporting.START}toy-gpu -->\n{reporting.END}\n", "asks for the record 'toy-gpu'"),
        (f"{reporting.START}toy-cpu form=long -->\n{reporting.END}\n", "there is short, full, plots"),
        (
            f"{reporting.START}toy-cpu rows=2 -->\n{reporting.END}\n",
            "rows= is not known; rows are chosen by suites",
        ),
        (f"{reporting.START}toy-cpu -->\n", "that no line <!-- /kernelworks:report --> ends"),
        (f"{reporting.START}toy-cpu -->\n{SHORT}", "that no line <!-- /kernelworks:report --> ends"),
    ],
)
def test_a_block_that_asks_for_something_odd_is_told(root: Path, block: str, message: str) -> None:
    (root / "README.md").write_text(block)
    with pytest.raises(RepositoryError, match=message):
        reporting.differences(root)


def test_a_model_has_tables_and_plots_beside_kernels(root: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    (root / "docs/results/ltx-gpu.json").write_text(model_record(work(), tokens()).to_json())
    blocks = [
        f"{reporting.START}ltx-gpu {words} -->\n{reporting.END}\n"
        for words in ("form=short cases=step", "form=plots", "")
    ]
    (root / "docs/models.md").write_text("\n".join(blocks))
    assert report(root) == 0
    page = (root / "docs/models.md").read_text()
    assert "| step | 60.00 | 30.00 | 40.00 | 24.00 | 2.00x | 1.33x | 1.67x |" in page
    assert page.count("| decode") == 0
    assert "**decode**, milliseconds a token:" in page
    assert '<img src="results/ltx-gpu-shares-light.svg" alt="Where the time goes' in page
    plots = {path.name for path in (root / "docs/results").glob("ltx-gpu*.svg")}
    assert plots == {f"ltx-gpu-shares-{theme}.svg" for theme in report_model_plot.THEMES}
    assert "2.00x" in (root / "README.md").read_text()  # the kernel's own table is there too
    assert report(root, "--check") == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("ltx-gpu cases=walk", "cases=walk, and ltx-gpu has step"),
        ("ltx-gpu dtypes=bfloat16", "dtypes= does not choose among works of a model"),
        ("ltx-gpu toy-cpu", "ltx-gpu is of a model, which stands alone"),
    ],
)
def test_what_cannot_be_asked_of_a_model(
    root: Path, words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "docs/results/ltx-gpu.json").write_text(model_record().to_json())
    (root / "docs/models.md").write_text(f"{reporting.START}{words} -->\n{reporting.END}\n")
    assert report(root) == RepositoryError.exit_code
    assert sentence in capsys.readouterr().err


def test_from_a_model_that_failed_nothing_is_claimed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = model_record(failures={"compile at step": "RuntimeError: no"})
    (root / "docs/results/ltx-gpu.json").write_text(failed.to_json())
    assert report(root) == RepositoryError.exit_code
    assert "holds a run that failed (compile at step: RuntimeError: no)" in capsys.readouterr().err
