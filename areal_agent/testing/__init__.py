"""What the tests of an agent need: `fakes` has an engine that says what the test tells it to.

`fakes.FakeEngine` implements `areal_agent.InferenceEngine` without a model. A script maps each
`ModelRequest` to a `Reply` (ids, logprobs, stop reason) or to an exception that is raised. The
engine keeps the requests it saw, and can hold requests back, change its version midway and break,
so that a workflow is tested without a server, without randomness and without waiting.
"""
