"""The turn that an answer of some kind of server is heard into.

What must be repaired in its text is a value of the profile; how it is repaired is not known here.
"""

from __future__ import annotations

from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.core.turn import Turn
from dragoman.formats.markup.repair import MarkedTurn

from .mint import new_id, now
from .profiles import Profile


def new_turn(
    profile: Profile, request: Request, losses: tuple[Loss, ...], *, raw: bool = False
) -> Turn:
    """A turn for the answer to this request, as this kind of server answers.

    `raw` says that the text is wanted as it comes, markup and all.
    """
    id, at, model = new_id(), now(), request.model
    if raw or profile.markup is None:
        return Turn(id, at, model, losses=losses, think=None if raw else profile.think)
    return MarkedTurn(id, at, model, markup=profile.markup, request=request, losses=losses)
