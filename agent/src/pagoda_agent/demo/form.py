"""The program of the demonstration: an order form.

It is a process of its own, for Tk wants the main thread. It tells where its widgets are and what
they hold, in a line of JSON after each change; a line to it empties it, and it ends with its input.
"""

import json
import os
import sys
import threading
import tkinter as tk
from typing import Any

_LOOK_MS = 50
_PAGE, _CARD, _INK, _ACCENT = "#eef0f4", "#ffffff", "#25221f", "#b5462f"
_FONT = "Helvetica"


class Form:
    def __init__(self, width: int, height: int):
        self.root = tk.Tk()
        self.root.title("Order form")
        # There is no window manager: it takes the whole screen and the keyboard.
        self.root.geometry(f"{width}x{height}+0+0")
        self.root.configure(background=_PAGE)
        self.sent = False
        self.name = tk.StringVar()
        self.delivery = tk.StringVar(value="standard")
        self._told = ""
        self.widgets = self._build()
        self.root.bind("<Enter>", lambda _: self.root.focus_force(), add=False)

    def _build(self) -> dict[str, tk.Widget]:
        card = tk.Frame(self.root, background=_CARD, padx=48, pady=36)
        card.place(relx=0.5, rely=0.5, anchor="center")

        def line(text: str, size: int = 14, **options: Any) -> tk.Label:
            label = tk.Label(
                card, text=text, background=_CARD, foreground=_INK, font=(_FONT, size), **options
            )
            label.pack(anchor="w", pady=(6, 4))
            return label

        line("The Pagoda bookshop", 24)
        line("One copy of 'Towers of the East'. No money is asked for: this is a demonstration.")
        line("Your name")
        entry = tk.Entry(card, textvariable=self.name, font=(_FONT, 16), width=36)
        entry.pack(anchor="w", ipady=6)
        line("Delivery")
        choices = {
            value: tk.Radiobutton(
                card, text=text, value=value, variable=self.delivery, background=_CARD,
                font=(_FONT, 14), highlightthickness=0,
            )
            for value, text in {"standard": "Standard, 5 days", "express": "Express, 1 day"}.items()
        }  # fmt: skip
        for choice in choices.values():
            choice.pack(anchor="w")
        button = tk.Button(
            card, text="Send order", command=self._send, font=(_FONT, 16), background=_ACCENT,
            foreground="white", activebackground=_ACCENT, activeforeground="white", padx=20,
            pady=8,
        )  # fmt: skip
        button.pack(anchor="w", pady=(20, 8))
        self.answer = line("", 16)
        return {"name": entry, "express": choices["express"], "send": button}

    def _send(self) -> None:
        self.sent = True
        who = self.name.get().strip() or "nobody"
        self.answer["text"] = f"Thank you, {who}: your order is on its way."

    def renew(self) -> None:
        """Empty, for the next task."""
        self.sent = False
        self.name.set("")
        self.delivery.set("standard")
        self.answer["text"] = ""

    def state(self) -> dict[str, Any]:
        focus = self.root.focus_get()
        return {
            "places": {
                name: [
                    widget.winfo_rootx() + widget.winfo_width() // 2,
                    widget.winfo_rooty() + widget.winfo_height() // 2,
                ]
                for name, widget in self.widgets.items()
            },
            "focused": focus is self.widgets["name"],
            "name": self.name.get(),
            "delivery": self.delivery.get(),
            "sent": self.sent,
        }

    def tell(self) -> None:
        told = json.dumps(self.state())
        if told != self._told:
            self._told = told
            print(told, flush=True)
        self.root.after(_LOOK_MS, self.tell)


def main() -> None:
    form = Form(int(sys.argv[1]), int(sys.argv[2]))

    def obey() -> None:
        for _ in sys.stdin:
            form.root.event_generate("<<Renew>>", when="tail")
        os._exit(0)

    form.root.bind("<<Renew>>", lambda _: form.renew())
    form.root.update()
    form.root.focus_force()
    threading.Thread(target=obey, daemon=True).start()
    form.tell()
    form.root.mainloop()


if __name__ == "__main__":
    main()
