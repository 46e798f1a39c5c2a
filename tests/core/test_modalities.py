"""What a model cannot see, hear or read becomes words, and is told."""

from dragoman.core.item import (
    Audio,
    CustomToolCallOutput,
    File,
    FunctionCallOutput,
    Image,
    Item,
    Message,
    Text,
)
from dragoman.core.loss import LossList
from dragoman.core.lower import Modality, replace_modalities

PICTURE = Image("data:image/png;base64,AAAA")
ALL: tuple[Modality, ...] = (Image, Audio, File)


def words(*parts: object, senses: tuple[Modality, ...] = ALL) -> tuple[str, list[tuple[str, str]]]:
    ledger = LossList()
    (item,) = replace_modalities((Message("user", parts),), senses, ledger)
    assert isinstance(item, Message)
    return item.text, [(loss.field, loss.action) for loss in ledger.losses()]


def test_p32_image_becomes_a_placeholder_and_is_reported() -> None:
    text, losses = words(Text("Look: "), PICTURE)
    assert text == "Look: [image: this model cannot see it]"
    assert losses == [("items[0].content[1]", "dropped")]


def test_p32_an_image_in_a_tool_result_becomes_a_placeholder_and_never_text() -> None:
    history: tuple[Item, ...] = (
        FunctionCallOutput("c1", (Text("a screenshot"), PICTURE)),
        CustomToolCallOutput("c2", (PICTURE,)),
    )
    ledger = LossList()
    first, second = replace_modalities(history, (Image,), ledger)
    assert isinstance(first, FunctionCallOutput)
    assert isinstance(second, CustomToolCallOutput)
    placeholder = Text("[image: this model cannot see it]")
    assert first.output == (Text("a screenshot"), placeholder)
    assert second.output == (placeholder,)
    assert [loss.field for loss in ledger.losses()] == ["items[*].output[*]"]
    assert "base64" not in repr((first, second))


def test_audio_is_replaced_by_its_transcript_or_a_placeholder() -> None:
    assert words(Audio("AAAA", "wav")) == (
        "[audio: this model cannot hear it]",
        [("items[0].content[0]", "dropped")],
    )
    assert words(Audio("AAAA", transcript="hello")) == (
        "hello",
        [("items[0].content[0]", "emulated")],
    )


def test_a_file_becomes_a_placeholder() -> None:
    assert words(File("f1"))[0] == "[file: this model cannot read it]"


def test_only_missing_modalities_are_replaced() -> None:
    assert words(PICTURE, File("f1"), senses=(File,))[1] == [("items[0].content[1]", "dropped")]


def test_items_without_missing_modalities_are_unchanged() -> None:
    history: tuple[Item, ...] = (
        Message("user", "hi"),
        Message("user", (Text("hi"),)),
        FunctionCallOutput("c", "x"),
        FunctionCallOutput("c", (Text("x"),)),
    )
    assert replace_modalities(history, ALL, LossList()) is history
