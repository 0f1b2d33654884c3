"""Programs for developers of this project. They are not part of the installed package."""
