from pagoda.weights.source import resolve_model


def fetch_headers(ref, *, download_dir=None, revision=None):
    return resolve_model(ref, download_dir=download_dir, revision=revision)
