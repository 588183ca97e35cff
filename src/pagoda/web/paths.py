"""Where the pages' files are, relative to the server's root."""

ASSETS_PATH = "pages/chat/"
NICEGUI_PATH = "_nicegui/"
