"""Image files for the digits: supported formats, and one-line errors for all others."""

import io

import pytest
from PIL import EpsImagePlugin, Image

from transformer_jax import InputError
from transformer_jax.tasks.anomaly.examples import FORMATS, read_images


def image(name: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (16, 16), 7).save(buffer, name)
    return buffer.getvalue()


WRONG = {  # of some of them Pillow raises neither OSError nor ValueError
    "damaged.avif": b"\0\0\0\x1cftypavif" + bytes(50),
    "damaged.dds": b"DDS \x7c" + bytes(140),
    "damaged.png": image("PNG")[:40],
    "flipped.png": image("PNG").replace(b"IDAT", b"IDAX"),
    "drawing.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n",  # Ghostscript's
    "text.png": b"no image",
}


@pytest.mark.parametrize("name", FORMATS)
def test_these_formats_are_read(tmp_path, name):
    (tmp_path / "image").write_bytes(image(name))
    assert read_images([str(tmp_path / "image")] * 2, (8, 8)).shape == (2, 8, 8)


@pytest.mark.parametrize("name", [*WRONG, "missing.png"])
def test_others_and_damaged_ones_are_refused_in_one_line(tmp_path, monkeypatch, name):
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("another program was started"))
    path = tmp_path / name
    if name in WRONG:
        path.write_bytes(WRONG[name])
    with pytest.raises(InputError) as caught:
        read_images([str(path)] * 2, (8, 8))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
