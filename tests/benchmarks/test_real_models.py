"""The page on published models is regenerated section by section."""

import pytest

from documents import section_of, text_of
from real_models import PAGE, SECTIONS, renewed


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_that_is_made_again_leaves_all_others_alone(name):
    heading, _ = SECTIONS[name]
    page, section = text_of(PAGE), section_of(PAGE, heading)
    before, marker, _ = section.partition(f"<!-- made {name} -->\n")
    assert marker
    start, end = page.split(section)
    assert renewed(page, name, "New.") == f"{start}{before}{marker}\nNew.\n{end}"
