"""The rig itself: tests that trust its programs and its observer must be able to."""

from tests.agent.rig.desktop import start_desktop
from tests.agent.rig.programs import xterm, zenity
from tests.agent.rig.target import start_target


def test_programs_on_a_desktop_and_what_is_seen_of_them(tmp_path):
    with start_desktop(tmp_path) as desktop:
        with zenity(desktop, "--entry", "--text=Name?") as dialog:
            desktop.run("xdotool", "type", "Zoe")
            desktop.run("xdotool", "key", "Return")
            assert dialog.answer() == (0, "Zoe")
        with xterm(desktop) as window:
            assert desktop.place(window)[2] > 400
            desktop.run("xdotool", "type", "echo written > file.txt; exit\n")
            desktop.wait_until_gone(window)
        assert (desktop.folder / "file.txt").read_text() == "written\n"
        with start_target(desktop) as target:
            desktop.run("xdotool", "mousemove", "300", "200", "mousedown", "1")
            desktop.run("xdotool", "keydown", "shift")
            target.wait_for("both", lambda state: state["presses"] and state["keys"])
            assert desktop.observer.pointer() == (300, 200, frozenset({"left"}))
            assert len(desktop.observer.keys_down()) == 1
            desktop.run("xdotool", "mouseup", "1", "keyup", "shift")
            target.wait_for("both", lambda state: state["releases"] and len(state["keys"]) == 2)
            assert not desktop.observer.pointer().buttons | desktop.observer.keys_down()
