"""Mutants that pass because they are right: by exercise, the changed line and why it is right."""

RIGHT: dict[str, dict[str, str]] = {
    "generate": {
        "def generate(model, idx: Tensor, new_tokens: int, temperature=1.0, top_k=50, top_p=1.0) -> Tensor:  =>  def generate(model, idx: Tensor, new_tokens: int, temperature=1.0, top_k=50, top_p=2.0) -> Tensor:": "Neither cuts anything off.",
        "idx = torch.cat((idx, torch.multinomial(nucleus(logits.softmax(-1), top_p), 1)), dim=1)  =>  idx = torch.cat((idx, torch.multinomial(nucleus(logits.softmax(+1), top_p), 1)), dim=1)": "The last of two axes is axis 1.",
        "last axis: idx = torch.cat((idx, torch.multinomial(nucleus(logits.softmax(-1), top_p), 1)), dim=1)": "The last of two axes is axis 1.",
    },
    "train": {
        "count = config.batch_tokens // config.block_size // config.micro_batch_size  =>  count = config.batch_tokens / config.block_size // config.micro_batch_size": "The division has no remainder there.",
        "count = config.batch_tokens // config.block_size // config.micro_batch_size  =>  count = config.batch_tokens // config.block_size / config.micro_batch_size": "The division has no remainder there.",
    },
    "ninth_test": {
        "places = torch.arange(120_000)  # a text in which each token says where it stands  =>  places = torch.arange(120001)  # a text in which each token says where it stands": "A longer text will do.",
        "script = module.Script(places, vocab=1, seed=0)  =>  script = module.Script(places, vocab=2, seed=0)": "The model plays no part in the test.",
        "script = module.Script(places, vocab=1, seed=0)  =>  script = module.Script(places, vocab=1, seed=1)": "Any seed will do.",
        "for number in range(500):  =>  for number in range(501):": "More batches will do.",
        "parts = set((torch.cat(seen) // 10_000).tolist())  =>  parts = set((torch.cat(seen) // 10001).tolist())": "Parts of nearly equal length will do.",
    },
    "rows_that_leak": {
        "for later in range(1, tokens.size(1)):  =>  for later in range(tokens.size(1)):": "No row comes before token 0.",
        "changed[:, later] = (changed[:, later] + 1) % vocab_size  =>  changed[:, later] = (changed[:, later] - 1) % vocab_size": "Any other token will do.",
        "moved = (model(changed) - before).abs().amax(dim=(0, 2)) > 1e-6  =>  moved = (model(changed) - before).abs().amax(dim=(0, 2)) >= 1e-6": "No difference is exactly 1e-6.",
    },
    "init_of_today": {
        "parameter.normal_(0.0, 1.0)  =>  parameter.normal_(0.0, )": "The default std is 1.",
    },
    "plan": {
        "days = steps * seconds / share / 86_400  =>  days = steps * seconds / share / 86401": "A plan's numbers may be rounded to a percent.",
        '"fsdp_alone": bill(Layout(dp=512, zero=3), "full")[1],  =>  "fsdp_alone": bill(Layout(dp=513, zero=3), "full")[1],': "A plan's numbers may be rounded to a percent.",
        "integer division: steps = capstone.TOKENS / (layout.batch * capstone.SEQ)": "A plan's numbers may be rounded to a percent.",
        "integer division: days = steps * seconds / share / 86400 (2)": "A plan's numbers may be rounded to a percent.",
    },
    "cheapest": {
        "integer division: needed = 6 * parameters * tokens / (offer.gpus * offer.peak * offer.mfu) / 3600": "GPUs are billed by the second.",
    },
    "texts_at_once": {
        "integer division: by_flops = seconds * peak / (2 * weights)": "The next line rounds down.",
        "integer division: by_bytes = (seconds * bandwidth - 2 * weights) / cache (2)": "The next line rounds down.",
    },
    "ignored": {
        "torch.manual_seed(0)  =>  torch.manual_seed(1)": "Any seed will do, if all runs have the same.",
    },
    "training_flops": {
        'head = width // config["num_attention_heads"]  =>  head = width / config["num_attention_heads"]': "The division has no remainder there.",
    },
    "keeps_contract": {
        "q, k, v = (normal(2, 3, 7, 5, seed=seed) for seed in range(3))  # four different sizes  =>  q, k, v = (normal(2, 3, 7, 6, seed=seed) for seed in range(3))  # four different sizes": "Any dim will do.",
        "q, k, v = (normal(2, 3, 7, 5, seed=seed) for seed in range(3))  # four different sizes  =>  q, k, v = (normal(2, 3, 7, 5, ) for seed in range(3))  # four different sizes": "Queries may equal keys.",
        "x[text, head, token] += 1  =>  x[text, head, token] += 2": "Any change will do.",
        "x[text, head, token] += 1  =>  x[text, head, token] = 1": "Any change will do.",
        "x[text, head, token] += 1  =>  x[text, head, token] -= 1": "Any change will do.",
        "moved = (attend(*changed) - before).abs().amax(-1) > 1e-6  =>  moved = (attend(*changed) - before).abs().amax(-1) >= 1e-6": "Nothing moves by just the tolerance.",
    },
    "factored": {
        "no gradient": "An optimizer's state isn't differentiated.",
    },
    "nucleus": {
        "no gradient": "Sampling needs no gradient, and the task doesn't ask for one.",
        "kept = ordered.where(ordered.cumsum(-1) - ordered < p, 0.0)  =>  kept = ordered.where(ordered.cumsum(+1) - ordered < p, 0.0)": "Axis 1 is the last of two.",
        "return torch.zeros_like(kept).scatter(-1, order, kept / kept.sum(-1, keepdim=True))  =>  return torch.zeros_like(kept).scatter(+1, order, kept / kept.sum(-1, keepdim=True))": "Axis 1 is the last of two.",
        "return torch.zeros_like(kept).scatter(-1, order, kept / kept.sum(-1, keepdim=True))  =>  return torch.zeros_like(kept).scatter(-1, order, kept / kept.sum(+1, keepdim=True))": "Axis 1 is the last of two.",
    },
    "backward": {
        "other dtype": "The task leaves the dtype of the number open, and a float64 has the same value.",
        "no gradient": "The result of the solution has no graph either.",
    },
    "flash_attention": {
        "m, total = torch.full((seq, 1), -math.inf), torch.zeros(seq, 1)  =>  m, total = torch.full((seq, 1), -math.inf), torch.zeros(1)": "A total of one zero broadcasts to one per query in the first addition.",
    },
    "unpermute": {
        "no gradient": "The weights of a file are put back before anything is trained.",
    },
    "cached_attention": {
        "no gradient": "A cache serves generation, which needs no gradient.",
    },
    "ending_losses": {
        "texts = [torch.tensor((c + e)[-size:]) for c, e in zip(contexts, endings, strict=True)]  =>  texts = [torch.tensor((c + e)[-size:]) for c, e in zip(contexts, endings, strict=False)]": "The task gives lists of the same length.",
        "texts = [torch.tensor((c + e)[-size:]) for c, e in zip(contexts, endings, strict=True)]  =>  texts = [torch.tensor((c + e)[-size:]) for c, e in zip(contexts, endings, strict=None)]": "The task gives lists of the same length.",
        "texts = [torch.tensor((c + e)[-size:]) for c, e in zip(contexts, endings, strict=True)]  =>  texts = [torch.tensor((c + e)[-size:]) for c, e in zip(contexts, endings, )]": "The task gives lists of the same length.",
        "pairs = zip(texts, endings, strict=True)  =>  pairs = zip(texts, endings, strict=False)": "There is one text per ending.",
        "pairs = zip(texts, endings, strict=True)  =>  pairs = zip(texts, endings, strict=None)": "There is one text per ending.",
        "pairs = zip(texts, endings, strict=True)  =>  pairs = zip(texts, endings, )": "There is one text per ending.",
        "found = zip(logits, after, spans, strict=True)  =>  found = zip(logits, after, spans, strict=False)": "There is one row per text.",
        "found = zip(logits, after, spans, strict=True)  =>  found = zip(logits, after, spans, strict=None)": "There is one row per text.",
        "found = zip(logits, after, spans, strict=True)  =>  found = zip(logits, after, spans, )": "There is one row per text.",
        "no gradient": "An evaluation needs no gradient.",
    },
    "checkpoint": {
        'if os.name == "posix":  # the new name as well; Windows can\'t open a folder  =>  if os.name == "XXposixXX":  # the new name as well; Windows can\'t open a folder': "What the folder needs differs by system, and no check cuts the power.",
        'if os.name == "posix":  # the new name as well; Windows can\'t open a folder  =>  if os.name != "posix":  # the new name as well; Windows can\'t open a folder': "What the folder needs differs by system, and no check cuts the power.",
        "state = torch.load(path, weights_only=True)  =>  state = torch.load(path, weights_only=False)": "The file is the learner's own, and a check gives no stranger's.",
        "state = torch.load(path, weights_only=True)  =>  state = torch.load(path, weights_only=None)": "The default of PyTorch is True.",
        "state = torch.load(path, weights_only=True)  =>  state = torch.load(path, )": "The default of PyTorch is True.",
    },
}
