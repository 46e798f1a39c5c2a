"""What a page shows of a program: everything, and nothing that is loaded from elsewhere."""

import re
import shutil
import struct
import subprocess
from html.parser import HTMLParser

import pytest

from dragoman.cli.main import main
from dragoman.core.item import Message, Reasoning, Text, Thought, Token
from dragoman.program import Model, assistant, gen, gen_audio, image, select, user
from tests.agent.stage import Model as Stage
from tests.agent.stage import call
from tests.program.test_weaknesses import PIXEL, weather

TOP = (Token("<b>", -0.1), Token("no", -2.5))
SAID = Message(
    "assistant",
    (Text("<b>!", tokens=(Token("<b>", -0.1, top=TOP), Token("!", -0.0, forced=True))),),
)


class Page(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


def shown() -> Model:
    """A program with something of everything."""
    thought = Reasoning((Thought("Hm & hm."),))
    stage = Stage([thought, call("weather", city="Rome")], SAID, "rude")
    lm = Model(stage)
    with user():
        lm += "What <is> this? " + image(PIXEL) + image("http://127.0.0.1:1/far.png")
    with assistant():
        lm += gen("seen", tools=[weather], list_append=True)
        lm += " and " + select(["rude"], name="mood")
    return lm


def test_a_page_shows_turns_tokens_calls_and_captures() -> None:
    html = shown().html(prices=(1.0, 2.0))
    page = Page(html)
    for words in ("What <is> this?", "Hm & hm.", 'weather({"city": "Rome"})', "Sunny in Rome."):
        assert words in page.text
    assert "'no'" in page.text  # an alternative, with its probability
    assert " 90.48 %" in page.text
    assert "nothing else could follow" in page.text
    assert "verified" in page.text
    assert "cost 0.000" in page.text
    classes = [attributes.get("class") for _, attributes in page.tags]
    assert classes.count("token") == 1
    assert classes.count("token forced") == 1


def test_a_page_loads_nothing() -> None:
    page = Page(shown().html())
    sources = [a[name] for _, a in page.tags for name in ("src", "href") if name in a]
    assert [source[:22] for source in sources] == ["data:image/png;base64,"]
    assert not {"script", "link", "iframe"} & {tag for tag, _ in page.tags}
    assert "far.png" in page.text
    assert "url(" not in shown().html()


def test_branches_stand_side_by_side() -> None:
    lm = shown()
    page = Page(lm.html(lm.set("k", b"123")))
    assert [tag for tag, _ in page.tags].count("section") == 2
    assert "branch 2" in page.text
    assert "3 bytes" in page.text
    assert Page(lm._repr_html_()).text.count("What <is> this?") == 1


def test_a_terminal_gets_plain_text(capsys) -> None:
    shown().show()
    text = capsys.readouterr().out
    assert "user: What <is> this? [IMAGE][IMAGE]\n" in text
    assert '<tool=weather>{"city": "Rome"}</tool>' in text
    assert "⟦<b>!⟧ and ⟦rude⟧\n" in text
    assert re.search(r"\n3 requests, .*\d s", text)


def test_arguments_and_the_status_of_a_file_are_its_own(tmp_path, capsys) -> None:
    page, file = tmp_path / "page.html", tmp_path / "status.py"
    lines = ("import sys", "from dragoman.program import Model", "lm = Model('script')")
    file.write_text("\n".join((*lines, "print(*sys.argv[1:])", "sys.exit(3)")))
    with pytest.raises(SystemExit, match="3"):
        main(["run", str(file), "a", "--html", str(page), "b", "--", "-c"])
    assert capsys.readouterr().out == "a b -c\n"
    assert "lm" in page.read_text()
    assert main(["run", str(file), "--model", "m"]) == 1
    assert "--model is for codex, claude and opencode" in capsys.readouterr().err


def test_a_file_is_run_and_its_models_are_written_as_a_page(tmp_path, capsys) -> None:
    file, page = tmp_path / "one.py", tmp_path / "page.html"
    file.write_text(
        "import sys\n"
        "from dragoman.program import Model, assistant, gen, user\n"
        "first = Model('script')\n"
        "with user():\n    first += sys.argv[1]\n"
        "with assistant():\n    second = first + gen('x')\n"
        "print(__name__)\n"
    )
    assert main(["run", str(file), "--html", str(page), "count to two"]) == 0
    assert capsys.readouterr().out == "__main__\n"
    text = Page(page.read_text()).text
    assert "second" in text
    assert "1, 2." in text
    file.write_text("x = 1")
    assert main(["run", str(file), "--html", str(page)]) == 1
    assert "has no model" in capsys.readouterr().err
    file.write_text("open('no.csv')")
    with pytest.raises(FileNotFoundError, match=r"no\.csv"):  # the program's own, with its line
        main(["run", str(file)])
    assert main(["run", str(file), "--html", str(tmp_path / "none" / "page.html")]) == 1
    assert "there is no folder" in capsys.readouterr().err  # said before the program runs
    for there, problem in ((tmp_path, "a folder"), (file, "the program itself")):
        assert main(["run", str(file), "--html", str(there)]) == 1
        assert f"it is {problem}" in capsys.readouterr().err
    file.write_text("from dragoman.program import Model\nlm = Model('script')")
    assert main(["run", str(file), "--html", "/dev/full"]) == 1
    assert "the page cannot be written: No space left" in capsys.readouterr().err
    file.write_text("x=" + "-" * 200_000 + "1")
    assert main(["run", str(file)]) == 1
    assert "cannot be run" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "no.py")]) == 1
    assert main(["run", "codex", "--html", str(page)]) == 1
    with pytest.raises(SystemExit):
        main(["run", "codx"])
    assert "no program 'codx'; did you mean codex?" in capsys.readouterr().err


def test_sound_is_shown_by_its_transcript() -> None:
    lm = Model(Stage("Spoken."))
    with assistant():
        lm += gen_audio("speech")
    assert "Spoken." in Page(lm.html()).text
    assert lm["speech"][:4] == b"RIFF"


if BROWSER := shutil.which("chromium"):  # from Debian; without one there is nothing to look with

    @pytest.mark.uncounted
    def test_a_browser_draws_the_page(tmp_path) -> None:
        (tmp_path / "page.html").write_text(shown().html(), encoding="utf-8")
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=640,480"]
        command += [f"--user-data-dir={tmp_path}/profile", f"--screenshot={tmp_path}/page.png"]
        subprocess.run([*command, f"file://{tmp_path}/page.html"], check=True, capture_output=True)
        drawn = (tmp_path / "page.png").read_bytes()
        assert struct.unpack(">II", drawn[16:24]) == (640, 480)
        assert len(drawn) > 5_000  # a blank page has about 2,500 bytes
