"""From a path and a method to the handler; HEAD is answered as GET, without a body."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus

import msgspec

from bpfleakd.api.answers import error_answer
from bpfleakd.api.messages import Handler, Request, Response


class Route:
    """`path` has its parameters in braces: {name} is one part, {name:path} the rest."""

    def __init__(self, path: str, method: str, handler: Handler) -> None:
        self.methods = (method, "HEAD") if method == "GET" else (method,)
        self.handler = handler
        parts = re.split(r"\{(\w+)(:path)?\}", path)
        fixed, names, rests = parts[::3], parts[1::3], parts[2::3]
        found = [f"(?P<{name}>{'.*' if rest else '[^/]+'})" for name, rest in zip(names, rests, strict=True)]
        self.pattern = re.compile(
            "".join(a + b for a, b in zip(map(re.escape, fixed), [*found, ""], strict=True)), re.DOTALL
        )


class Router:
    """Calls the handler of the route that a request is for."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = tuple(routes)

    async def __call__(self, request: Request) -> Response:
        allowed: list[str] = []
        for route in self._routes:
            match = route.pattern.fullmatch(request.path)
            if match is None:
                continue
            if request.method in route.methods:
                return await route.handler(msgspec.structs.replace(request, path_params=match.groupdict()))
            allowed += route.methods
        if not allowed:
            return error_answer(
                HTTPStatus.NOT_FOUND,
                "not-found",
                f"there is no {request.path}",
                "docs/json.md lists the paths",
            )
        refusal = error_answer(
            HTTPStatus.METHOD_NOT_ALLOWED,
            "method-not-allowed",
            f"{request.method} is not allowed on {request.path}",
        )
        refusal.headers["allow"] = ", ".join(allowed)
        return refusal
