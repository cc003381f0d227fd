"""Access to the console: a token for the first visit, then a cookie; no foreign host names, no cross-site requests.

All viewers act with the console's certificate, so an open port must not be enough (docs/console.md#access).
"""

import secrets
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECURITY_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer, a browser does not tell the origin of a form
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Access:
    """ASGI middleware in front of every page and file."""

    def __init__(
        self,
        app: ASGIApp,
        hosts: Iterable[str],
        port: int,
        say: Callable[[str], None],
        allow_changes: bool = False,
    ) -> None:
        """``hosts`` are the names that a Host header may have; ``say`` receives each new token."""
        self._methods = ("GET", "HEAD", "POST") if allow_changes else ("GET", "HEAD")
        self._app = app
        self._hosts = frozenset(f"{host.lower()}:{port}" for host in hosts)
        self._cookie = f"paceline_console_{port}"
        self._session = secrets.token_urlsafe(32)
        self._say = say
        self._token = ""
        self._renew()

    def _renew(self) -> None:
        self._token = secrets.token_urlsafe(24)
        self._say(self._token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_safely)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that may not pass, None when it may."""
        headers = Headers(scope=scope)
        if headers.get("host", "").lower() not in self._hosts:
            return PlainTextResponse("This console does not have that name; start it with --name HOST.\n", 403)
        if scope["method"] not in self._methods:
            return PlainTextResponse("The console is read-only; --allow-changes permits changes.\n", 405)
        if self._is_foreign(headers) or (scope["method"] == "POST" and not self._is_own(headers)):
            return PlainTextResponse("The console answers no requests of other sites.\n", 403)
        if scope["path"] == "/healthz":
            return PlainTextResponse("SERVING\n")
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in query if name == "token"), None)
        if given is not None and secrets.compare_digest(given.encode(), self._token.encode()):
            self._renew()
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            path = "/" + scope["path"].lstrip("/")
            answer = Response(status_code=303, headers={"location": f"{path}?{rest}" if rest else path})
            answer.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path="/")
            return answer
        if not self._has_cookie(headers):
            text = "Open the address that `paceline console` has printed last: each is good for one browser.\n"
            return PlainTextResponse(text, 401)
        return None

    def _is_foreign(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() not in self._hosts:
            return True
        site = headers.get("sec-fetch-site", "none")
        # A link on another page may lead here; the strict cookie keeps such a visit out unless it has a token.
        return site not in ("none", "same-origin") and headers.get("sec-fetch-mode") != "navigate"

    def _is_own(self, headers: Headers) -> bool:
        """Return whether the request comes from a page of the console: browsers tell the origin of every form."""
        is_navigation = headers.get("sec-fetch-site", "same-origin") == "same-origin"
        return is_navigation and headers.get("origin", "").partition("://")[2].lower() in self._hosts

    def _has_cookie(self, headers: Headers) -> bool:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return morsel is not None and secrets.compare_digest(morsel.value.encode(), self._session.encode())
