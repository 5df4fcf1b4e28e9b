"""Runs with a model that nobody scripted, killed in the middle of what it says, and resumed.

They ask any server that the environment names, and are skipped if it names none:

    FISK_AI_TEST_ANTHROPIC_URL   speaks the Messages API; without `/v1`, as the SDK takes it
    FISK_AI_TEST_OPENAI_URL      speaks Chat Completions and Responses; with `/v1`
    FISK_AI_TEST_MODEL           the model's name; `local` unless given, which llama.cpp's server takes
    ANTHROPIC_API_KEY, OPENAI_API_KEY   if the server wants one

`make test-local-model` runs them, prints what was said, and fails if no server is named. A model of 1.5 billion
parameters will do, if it calls tools. A model does as it likes, so a run in which it didn't call the tool, or didn't
tell what the tool said, is tried again; what fisk-ai promises has to hold at the first attempt.
"""
