"""The embedded engine's HTTP surface: OpenAI's forms with vLLM's extensions, on aiohttp."""
