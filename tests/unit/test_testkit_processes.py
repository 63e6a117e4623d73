"""Processes are real: signals reach them, their end is seen, and nothing of them is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from bellwire_schema.faultpoints import reach
from bellwire_testkit.processes import Process, Processes, clean_environment
from bellwire_testkit.waiting import Barrier, kill_at, wait_until

REACH = "import bellwire_schema.faultpoints as f; print('before'); f.reach('x.y'); print('after')"
SLEEP = "import time; print('up', flush=True); time.sleep(60)"


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_output_and_exit_code(processes: Processes) -> None:
    process = processes.start("python", "-c", "import sys; print('hello', 40 + 2); sys.exit(3)")
    assert process.wait_for_output(r"hello (\d+)").group(1) == "42"
    assert process.wait_exit(within=10) == 3


def test_waiting_for_a_dead_process_fails_at_once(processes: Processes) -> None:
    process = processes.start("python", "-c", "print('last words')")
    with pytest.raises(AssertionError, match="last words"):
        process.wait_for_output("never", deadline=60)
    with pytest.raises(AssertionError, match="ended with 0"):
        process.terminate()


def test_outstaying_is_an_error(processes: Processes) -> None:
    process = processes.start("python", "-c", SLEEP)
    process.wait_for_output("up")
    with pytest.raises(AssertionError, match="still running"):
        process.wait_exit(within=0.05)


def test_signals(processes: Processes) -> None:
    for send, code in (("kill", -9), ("terminate", -signal.SIGTERM)):
        process = processes.start("python", "-c", SLEEP)
        process.wait_for_output("up")
        getattr(process, send)()
        assert process.wait_exit(within=10) == code


def test_stop_and_continue(processes: Processes) -> None:
    process = processes.start("python", "-c", SLEEP)
    process.wait_for_output("up")

    def state() -> str:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    process.stop()
    wait_until(lambda: state() == "T", describe="the process to stand still")
    process.cont()
    wait_until(lambda: state() == "S", describe="the process to go on")


def test_close_takes_the_children_along(tmp_path: Path) -> None:
    code = f"import subprocess, sys; print('child', subprocess.Popen([sys.executable, '-c', {SLEEP!r}]).pid)"
    process = Process("python", "-c", f"{code}; {SLEEP}", folder=tmp_path)
    child = int(process.wait_for_output(r"child (\d+)").group(1))
    process.kill()
    assert alive(child)
    process.close()
    wait_until(lambda: not alive(child), describe="the child to be gone")


def test_environment_is_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLWIRE_DATABASE_URL", "postgresql://production")
    monkeypatch.setenv("PGPASSWORD", "secret")
    environment = clean_environment({"BELLWIRE_SLOTS": "1"})
    assert {k for k in environment if k.startswith(("BELLWIRE_", "PG"))} == {"BELLWIRE_SLOTS"}
    assert environment["PATH"] == os.environ["PATH"]


def test_fault_point_kills_without_last_words(processes: Processes) -> None:
    process = processes.start("python", "-c", REACH, env=kill_at("x.y"))
    assert process.wait_exit(within=20) == -signal.SIGKILL
    assert process.output == "before\n"


def test_fault_point_waits_to_be_released(processes: Processes, tmp_path: Path) -> None:
    barrier = Barrier(tmp_path, "x.y")
    process = processes.start("python", "-c", REACH, env=barrier.environment)
    barrier.wait_reached()
    assert process.code is None
    barrier.release()
    assert process.wait_exit(within=20) == 0
    assert process.output == "before\nafter\n"


def test_other_fault_points_are_passed_by(processes: Processes) -> None:
    process = processes.start("python", "-c", REACH, env=kill_at("x.z"))
    assert process.wait_exit(within=20) == 0


@pytest.mark.parametrize("plan", ["x.y", "x.y:die", "x.y:kill:now", "x.y:pause", ":kill"])
def test_a_plan_that_says_nothing_is_refused(plan: str, processes: Processes) -> None:
    process = processes.start("python", "-c", REACH, env={"BELLWIRE_TEST_FAULTPOINT": plan})
    assert process.wait_exit(within=20) == 1
    assert "NAME:kill or NAME:pause:PATH" in process.output


def test_unarmed_fault_points_do_nothing() -> None:
    reach("anything")


def test_a_missing_command_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Process("/no/such/command", folder=tmp_path)
