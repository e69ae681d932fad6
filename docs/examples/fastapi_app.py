"""FastAPI: one client for the whole application, opened and closed by its lifespan.

Shows
    walrq.aio inside FastAPI (asyncio): the client lives as long as the application
    a request that answers 202 with the message's id once the job is durable
    an endpoint that says where the job stands, and one that takes it back
    what to answer when the queue is away: 503, and the caller knows that nothing was stored

Run it with a node at WALRQ_SERVER:  uvicorn fastapi_app:app
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request

import walrq.aio
from walrq.errors import OutcomeUnknown, Unavailable

QUEUE = "thumbnails"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Connect before the first request, say goodbye after the last."""
    async with walrq.aio.connect(timeout_s=5) as queue:
        app.state.queue = queue
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/thumbnails", status_code=202)
async def order(request: Request, image: str, idempotency_key: str | None = None) -> dict[str, str]:
    """Order a thumbnail. The same idempotency key within five minutes is the same job."""
    queue: walrq.aio.Client = request.app.state.queue
    try:
        return {"job": await queue.push(QUEUE, json={"image": image}, dedup_id=idempotency_key)}
    except Unavailable as error:
        raise HTTPException(503, f"nothing was stored, try again: {error}") from error
    except OutcomeUnknown as error:
        raise HTTPException(504, "it may have been stored: try again with the same idempotency_key") from error


@app.delete("/thumbnails/{job}")
async def take_back(request: Request, job: str) -> dict[str, str]:
    """Cancel an order that nobody works on yet."""
    queue: walrq.aio.Client = request.app.state.queue
    (outcome,) = await queue.cancel(QUEUE, job)
    if outcome == "unknown":
        raise HTTPException(404, "no such job")
    return {"outcome": outcome}


@app.get("/thumbnails")
async def waiting(request: Request) -> dict[str, Any]:
    """How much is waiting."""
    queue: walrq.aio.Client = request.app.state.queue
    info = await queue.show_queue(QUEUE)
    return {"ready": info.ready, "leased": info.leased}
