"""A full-screen Tk window that writes to a file what was done to it.

Run as a program: `python target_app.py STATE.json`. It knows nothing of drivers; what it records
is what an ordinary program on the controlled computer gets. Positions are pixels of the screen,
times the X server's milliseconds. Tk 8.6 reports horizontal notches as vertical ones with Shift.
SIGUSR1 makes it forget everything and put its widgets back.
"""

import json
import os
import signal
import sys
import tkinter as tk
from tkinter import ttk

BUTTONS = {1: "left", 2: "middle", 3: "right", 8: "back", 9: "forward"}
WHEEL = {4: "up", 5: "down"}
MODIFIERS = {1: "Shift", 4: "Control", 8: "Alt", 64: "Super"}
ROWS = 200
BOX = 40  # pixels along an edge


def modifiers(event: tk.Event) -> list[str]:
    return [name for bit, name in MODIFIERS.items() if int(event.state) & bit]


class Target:
    def __init__(self, file: str):
        self.file = file
        self.resets = 0
        self.saving = False
        self.root = tk.Tk()
        self.root.title("Target")
        self.root.attributes("-fullscreen", True)
        self.lay_out()
        self.forget()
        signal.signal(signal.SIGUSR1, lambda *_: self.reset())
        self.tick()
        self.root.after(2000, self.fill_screen)

    def lay_out(self) -> None:
        self.root.columnconfigure(0, weight=3)
        self.root.columnconfigure(1, weight=2)
        self.root.rowconfigure(0, weight=1)
        self.pad = tk.Canvas(self.root, bg="#204060", takefocus=1, highlightthickness=0)
        self.pad.grid(row=0, column=0, sticky="nsew")
        self.side = side = tk.Frame(self.root, padx=8, pady=8)
        side.grid(row=0, column=1, sticky="nsew")
        side.columnconfigure(0, weight=1)
        side.rowconfigure(6, weight=1)
        self.name, self.address, self.agree = tk.StringVar(), tk.StringVar(), tk.BooleanVar()
        self.widgets = {
            "pad": self.pad,
            "name": tk.Entry(side, textvariable=self.name),
            "address": tk.Entry(side, textvariable=self.address),
            "agree": tk.Checkbutton(side, text="I agree", variable=self.agree),
            "submit": tk.Button(side, text="Submit", command=self.submit),
            "text": tk.Text(side, height=8, width=40, undo=False),
            "status": ttk.Label(side, text="not submitted"),
            "list": tk.Listbox(side, activestyle="none", exportselection=False),
        }
        for row, name in enumerate(list(self.widgets)[1:]):
            self.widgets[name].grid(row=row, column=0, sticky="nsew", pady=4)
        self.list: tk.Listbox = self.widgets["list"]
        self.text: tk.Text = self.widgets["text"]
        for row in range(ROWS):
            self.list.insert("end", f"row {row}")
        self.zone = self.pad.create_rectangle(0, 0, 1, 1, outline="#80ff80", width=3)
        self.box = self.pad.create_rectangle(0, 0, BOX, BOX, fill="#ffb000", width=0)
        self.record()

    def record(self) -> None:
        """See events before the widgets' own bindings, which may end their way."""
        for widget in (self.side, *self.widgets.values()):
            widget.bindtags(("recorder", *widget.bindtags()))
        for count, prefix in enumerate(("", "Double-", "Triple-"), start=1):
            self.root.bind_class(
                "recorder",
                f"<{prefix}ButtonPress>",
                lambda event, count=count: self.on_press(event, count),
            )
        self.root.bind_class("recorder", "<ButtonRelease>", self.on_release)
        self.root.bind_class("recorder", "<Motion>", self.on_motion)
        self.root.bind_class("recorder", "<KeyPress>", lambda event: self.on_key(event, True))
        self.root.bind_class("recorder", "<KeyRelease>", lambda event: self.on_key(event, False))
        self.list.bind("<<ListboxSelect>>", lambda _: self.save_soon())
        self.root.bind("<Configure>", lambda _: self.place_zone())

    def forget(self) -> None:
        self.presses: list[dict] = []
        self.releases: list[dict] = []
        self.drags: list[dict] = []
        self.wheel: list[dict] = []
        self.keys: list[dict] = []
        self.moves: list[tuple[int, int]] = []
        self.path: list[tuple[int, int]] | None = None
        self.submitted: dict | None = None
        self.held_box = False

    def reset(self) -> None:
        self.forget()
        self.name.set("")
        self.address.set("")
        self.agree.set(False)
        self.text.delete("1.0", "end")
        self.list.selection_clear(0, "end")
        self.list.see(0)
        self.widgets["status"].configure(text="not submitted")
        self.pad.delete("dot")
        self.pad.coords(self.box, 20, 60, 20 + BOX, 60 + BOX)
        self.pad.focus_set()
        self.resets += 1
        self.save_soon()

    def tick(self) -> None:
        # Tcl sleeps in C, where Python's signal handlers do not run.
        self.root.after(20, self.tick)

    def fill_screen(self) -> None:
        """Ask again, until the window manager, which may just be starting, has done it."""
        if self.root.winfo_height() != self.root.winfo_screenheight():
            self.root.attributes("-fullscreen", False)
            self.root.attributes("-fullscreen", True)
            self.root.after(1000, self.fill_screen)

    def place_zone(self) -> None:
        width, height = self.pad.winfo_width(), self.pad.winfo_height()
        self.pad.coords(self.zone, width - 180, height - 180, width - 40, height - 40)
        self.save_soon()

    def on_press(self, event: tk.Event, count: int) -> None:
        at = {"x": event.x_root, "y": event.y_root, "modifiers": modifiers(event)}
        if event.num in WHEEL:
            self.wheel.append({"direction": WHEEL[event.num], **at})
        else:
            self.presses.append({"button": BUTTONS.get(event.num, event.num), "count": count, **at})
            self.path = [(event.x_root, event.y_root)]
        if event.widget is self.pad and event.num in BUTTONS:
            self.pad.focus_set()
            self.held_box = self.box in self.pad.find_overlapping(
                event.x, event.y, event.x, event.y
            )
            x, y = event.x, event.y
            self.pad.create_oval(x - 4, y - 4, x + 4, y + 4, fill="white", tags="dot")
        self.save_soon()

    def on_motion(self, event: tk.Event) -> None:
        self.moves.append((event.x_root, event.y_root))
        if self.path is not None:
            self.path.append((event.x_root, event.y_root))
        if self.held_box:
            self.pad.coords(
                self.box,
                event.x - BOX / 2, event.y - BOX / 2, event.x + BOX / 2, event.y + BOX / 2,
            )  # fmt: skip
        self.save_soon()

    def on_release(self, event: tk.Event) -> None:
        if event.num in WHEEL:
            return
        at = {"x": event.x_root, "y": event.y_root, "modifiers": modifiers(event)}
        button = BUTTONS.get(event.num, event.num)
        self.releases.append({"button": button, **at})
        if self.path is not None and len(self.path) > 1:
            path = [*self.path, (event.x_root, event.y_root)]
            self.drags.append({"button": button, "path": path, "modifiers": at["modifiers"]})
        self.path, self.held_box = None, False
        self.save_soon()

    def on_key(self, event: tk.Event, pressed: bool) -> None:
        self.keys.append(
            {
                "keysym": event.keysym,
                "char": event.char if pressed else "",
                "pressed": pressed,
                "time": event.time,
                "modifiers": modifiers(event),
            }
        )
        self.save_soon()

    def submit(self) -> None:
        self.submitted = self.form()
        self.widgets["status"].configure(text="submitted")
        self.save_soon()

    def form(self) -> dict:
        return {
            "name": self.name.get(),
            "address": self.address.get(),
            "agree": self.agree.get(),
        }

    def save_soon(self) -> None:
        if not self.saving:
            self.saving = True
            self.root.after(15, self.save)

    def save(self) -> None:
        self.saving = False
        box, zone = self.pad.coords(self.box), self.pad.coords(self.zone)
        left, top = self.pad.winfo_rootx(), self.pad.winfo_rooty()
        center = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
        selected = self.list.curselection()
        state = {
            "resets": self.resets,
            "screen": [self.root.winfo_screenwidth(), self.root.winfo_screenheight()],
            "places": {
                name: [w.winfo_rootx(), w.winfo_rooty(), w.winfo_width(), w.winfo_height()]
                for name, w in self.widgets.items()
            }
            | {"zone": [left + zone[0], top + zone[1], zone[2] - zone[0], zone[3] - zone[1]]}
            | {"box": [left + box[0], top + box[1], BOX, BOX]},
            "presses": self.presses,
            "releases": self.releases,
            "drags": self.drags,
            "moves": self.moves,
            "wheel": self.wheel,
            "keys": self.keys,
            "text": self.text.get("1.0", "end-1c"),
            "form": self.form(),
            "submitted": self.submitted,
            "list": {
                "first": self.list.nearest(0),
                "selected": self.list.get(selected[0]) if selected else None,
            },
            "in_zone": zone[0] < center[0] < zone[2] and zone[1] < center[1] < zone[3],
        }
        with open(f"{self.file}.part", "w") as part:
            json.dump(state, part)
        os.replace(part.name, self.file)


if __name__ == "__main__":
    target = Target(sys.argv[1])
    target.reset()
    target.root.mainloop()
