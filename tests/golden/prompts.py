"""Twenty prompts: prose, code, chat, lists, other languages, odd characters."""

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain, there lived a clockmaker who",
    "def fibonacci(n: int) -> int:\n    ",
    "<|im_start|>user\nWhat is the boiling point of water?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nAnswer in one word.<|im_end|>\n<|im_start|>user\nColour of the sky?"
    "<|im_end|>\n<|im_start|>assistant\n",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "SELECT name, count(*) FROM orders WHERE",
    "Die Hauptstadt von Deutschland ist",
    "我想问你，5的阶乘是多少？",
    "Les trois règles de la cuisine française sont",
    "#include <stdio.h>\n\nint main(void) {\n",
    "The patient presented with a persistent cough and",
    "Dear Sir or Madam,\n\nI am writing to",
    '{"name": "Ada", "born": 1815, "fields": [',
    "Q: Why do leaves turn red in autumn?\nA:",
    "🙂 emoji, naïve café, and a tab\there:",
    "In 1969, three astronauts",
    "To make bread you need flour, water, salt and",
    "A" * 40,
    "The theorem states that for every prime p greater than 3, p squared minus one is divisible by",
]
