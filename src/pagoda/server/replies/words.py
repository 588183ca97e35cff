"""When the words of a sound's windows were said: their texts are held against what is heard."""

import asyncio
import math
from dataclasses import replace

import numpy as np

from pagoda.core.messages import Alignment
from pagoda.server.bodies.pooling_texts import PooledText
from pagoda.server.pooling import PoolingJob
from pagoda.server.replies.windows import Asked, Texts, Window
from pagoda.text.sounds.alignment import Word, token_times, words_of


async def words_of_windows(
    asked: Asked, texts: Texts, windows: list[Window], language: str
) -> list[Word]:
    """Those of all windows, with seconds since the sound's begin."""
    written = [i for i, window in enumerate(windows) if len(window.ids) > 1 and window.text.strip()]
    if not written:
        return []
    alignments = {i: _alignment(asked, texts, i) for i in written}
    pooled = []
    for i in written:
        # The last token is followed by none, so that its attention says nothing.
        prompt = asked.prompt(i, [*texts.prompt, *windows[i].ids[:-1]])
        pooled.append(PooledText(prompt.ids, alignment=alignments[i], media=prompt.media))
    head = replace(asked.head, id=f"{asked.head.id}-words")
    job = PoolingJob(asked.context, asked.served, asked.body, head, pooled, "align")
    words: list[Word] = []
    for i, raw in zip(written, await job.run(), strict=True):
        scores = np.frombuffer(raw, np.float32).reshape(-1, alignments[i].frames)
        # A quarter of a second for a window full of text.
        times = await asyncio.to_thread(token_times, scores)
        found = words_of(windows[i].ids, times, asked.speech, asked.served.tokenizer, language)
        begin, end = asked.spans[i]
        words += [
            Word(word.text, min(begin + word.start, end), min(begin + word.end, end))
            for word in found
        ]
    return words


def _alignment(asked: Asked, texts: Texts, window: int) -> Alignment:
    begin, end = asked.spans[window]
    # A token is two hundredths of a second; a sound's last hundredth may be begun.
    frames = math.ceil(round(100 * (end - begin), 3)) // 2
    heads = list(asked.speech.alignment_heads)
    tokens = asked.medium.pieces[window].num_tokens
    return Alignment(heads, len(texts.prompt), min(max(frames, 1), tokens))
