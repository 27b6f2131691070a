"""Exports: new before old, ours only, and the last step always (S27, S28)."""

import os
from pathlib import Path

import pytest

from areal_agent.checkpoint.saver import Saver
from areal_agent.config.experiment import SaverConfig


async def export(folder: Path) -> None:
    """Write a model of one file."""
    os.mkdir(folder)
    (folder / "model.safetensors").write_text(folder.name)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


async def test_the_newest_are_kept_and_the_last_step_is_always_exported(tmp_path: Path) -> None:
    saver = Saver(SaverConfig(freq_steps=4, keep=2), tmp_path, export=export)
    got = [await saver.save(step, last=step == 14) for step in range(1, 15)]
    assert [path.name for path in got if path] == [
        "step-000004",
        "step-000008",
        "step-000012",
        "step-000014",
    ]
    assert names(tmp_path) == ["step-000012", "step-000014"]
    assert [path.name for path in saver.written] == ["step-000012", "step-000014"]


async def test_a_last_step_that_is_due_is_exported_once(tmp_path: Path) -> None:
    saver = Saver(SaverConfig(freq_steps=2), tmp_path, export=export)
    await saver.save(1)
    assert (await saver.save(2, last=True)) == tmp_path / "step-000002"
    assert names(tmp_path) == ["step-000002"]


async def test_fewer_steps_than_the_interval_and_no_interval_at_all(tmp_path: Path) -> None:
    for config in (SaverConfig(freq_steps=100), SaverConfig()):
        saver = Saver(config, tmp_path / str(config.freq_steps), export=export)
        assert await saver.save(1) is None
        assert await saver.save(2, last=True) is not None


async def test_epochs_count(tmp_path: Path) -> None:
    saver = Saver(SaverConfig(freq_epochs=1, keep=None), tmp_path, export=export)
    got = [await saver.save(s, epoch_ended=s % 3 == 0) for s in range(1, 7)]
    assert [path.name for path in got if path] == ["step-000003", "step-000006"]


async def test_foreign_and_older_folders_are_neither_counted_nor_removed(tmp_path: Path) -> None:
    for name in ("step-009999", "step-000002", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keep me").touch()
    saver = Saver(SaverConfig(freq_steps=1, keep=1), tmp_path, export=export)
    for step in (1, 2, 3):
        await saver.save(step)
    assert names(tmp_path) == ["notes", "step-000002", "step-000003", "step-009999"]
    assert names(tmp_path / "step-000002") == ["keep me"]
    assert names(tmp_path / "step-000003") == ["model.safetensors"]


async def test_somebody_elses_folder_of_the_same_step_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "step-000001").mkdir()
    saver = Saver(SaverConfig(freq_steps=1), tmp_path, export=export)
    assert await saver.save(1) == tmp_path / "step-000001-2"
    assert names(tmp_path / "step-000001") == []


async def test_a_failed_export_leaves_the_old_one_and_no_half_folder(tmp_path: Path) -> None:
    async def sometimes(folder: Path) -> None:
        await export(folder)
        if "000002" in folder.name:
            raise OSError(28, "No space left on device")

    saver = Saver(SaverConfig(freq_steps=1, keep=1), tmp_path, export=sometimes)
    await saver.save(1)
    with pytest.raises(OSError, match="No space left"):
        await saver.save(2)
    assert names(tmp_path) == ["step-000001"]
    await saver.save(3)
    assert names(tmp_path) == ["step-000003"]


async def test_the_old_export_is_there_until_the_new_one_is_complete(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    async def watch(folder: Path) -> None:
        await export(folder)
        seen.append(names(tmp_path))

    saver = Saver(SaverConfig(freq_steps=1, keep=1), tmp_path, export=watch)
    await saver.save(1)
    await saver.save(2)
    assert seen[1] == [".step-000002.partial", "step-000001"]
    assert names(tmp_path) == ["step-000002"]


async def test_what_a_killed_run_left_half_done_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / ".step-000001.partial").mkdir()
    (tmp_path / ".step-000001.partial" / "half").touch()
    saver = Saver(SaverConfig(freq_steps=1), tmp_path, export=export)
    assert await saver.save(1) == tmp_path / "step-000001"
    assert names(tmp_path / "step-000001") == ["model.safetensors"]


async def test_an_old_export_that_was_removed_by_hand_is_no_error(tmp_path: Path) -> None:
    saver = Saver(SaverConfig(freq_steps=1, keep=1), tmp_path, export=export)
    first = await saver.save(1)
    assert first is not None
    (first / "model.safetensors").unlink()
    first.rmdir()
    await saver.save(2)
    assert names(tmp_path) == ["step-000002"]
