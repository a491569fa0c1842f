"""packed_ss: lossless self-speculative decoding that drafts one call ahead."""

from .decoder import Decoder, GenerateOutput, generate
from .models.loading import load_model
from .models.tokenizer import load_tokenizer
from .observer import Observer
from .schedules import Branched

__version__ = "0.1.0"
__all__ = ["Branched", "Decoder", "GenerateOutput", "Observer", "__version__", "generate", "load_model", "load_tokenizer"]
