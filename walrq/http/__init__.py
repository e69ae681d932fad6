"""HTTP, translated: requests to `api` and back, the OpenAPI document, metrics as text, what pages may do.

Pure: no socket, no task. `doors/http.py` moves the bytes.
"""
