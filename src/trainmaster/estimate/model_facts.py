"""What training a model costs: FLOPs, bytes and parameters per sample, from papers and architectures.

`forward_gflops` counts a multiply and an add as two, per sample (an image, a sequence of the stated length).
`activation_mb` is what one sample keeps for the backward pass in FP32. `kernels` is about how many kernels
one training step starts; it bounds small batches. `host_ms` is host work per sample, `step_host_ms` per step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Family = Literal["cnn", "transformer", "rnn", "recommender", "gan", "rl"]


@dataclass(frozen=True)
class ModelFacts:
    name: str
    family: Family
    forward_gflops: float
    parameters_m: float
    activation_mb: float
    kernels: int
    default_batch: int
    note: str
    mixed: bool = False  # trained in 16 bit by default
    sharded: bool = False  # optimizer state divided over the workers (FSDP, ZeRO-3)
    host_ms: float = 0.0
    step_host_ms: float = 0.0


_ALL = (
    ModelFacts("AlexNet", "cnn", 1.43, 61.1, 5, 120, 128, "Krizhevsky 2012, 224x224"),
    ModelFacts("VGG-16", "cnn", 31.0, 138.4, 110, 200, 64, "Simonyan 2015, 224x224"),
    ModelFacts("VGG-19", "cnn", 39.3, 143.7, 120, 230, 64, "Simonyan 2015, 224x224"),
    ModelFacts("GoogLeNet", "cnn", 3.0, 6.6, 50, 700, 64, "Szegedy 2015, 224x224"),
    ModelFacts("Inception-BN", "cnn", 4.1, 11.3, 60, 800, 64, "Ioffe 2015, 224x224"),
    ModelFacts("Inception-v3", "cnn", 11.4, 27.2, 110, 1100, 64, "Szegedy 2016, 299x299"),
    ModelFacts("ResNet-18", "cnn", 1.11, 11.2, 20, 260, 128, "He 2016, CIFAR-10 variant, 32x32"),
    ModelFacts("ResNet-18-ImageNet", "cnn", 3.64, 11.7, 38, 260, 128, "He 2016, 224x224"),
    ModelFacts("ResNet-50", "cnn", 8.2, 25.6, 110, 700, 64, "He 2016, 224x224"),
    ModelFacts("ResNet-101", "cnn", 15.7, 44.5, 165, 1400, 64, "He 2016, 224x224"),
    ModelFacts("ResNet-152", "cnn", 23.1, 60.2, 230, 2100, 32, "He 2016, 224x224"),
    ModelFacts("ResNeXt-110", "cnn", 2.0, 6.6, 40, 1500, 128, "Xie 2017, CIFAR-10, approximate"),
    ModelFacts("DenseNet-121", "cnn", 5.7, 8.0, 140, 1700, 32, "Huang 2017, 224x224"),
    ModelFacts("DenseNet-201", "cnn", 8.7, 20.0, 200, 2900, 32, "Huang 2017, 224x224"),
    ModelFacts("MobileNet-v2", "cnn", 0.6, 3.5, 75, 650, 64, "Sandler 2018, 224x224"),
    ModelFacts("ShuffleNet-v2", "cnn", 0.29, 2.3, 40, 750, 64, "Ma 2018, 224x224"),
    ModelFacts("EfficientNet-B0", "cnn", 0.78, 5.3, 100, 1200, 64, "Tan 2019, 224x224"),
    ModelFacts("YOLOv3", "cnn", 65.9, 61.9, 420, 1000, 8, "Redmon 2018, 416x416"),
    ModelFacts("ViT-B/16", "transformer", 35.1, 86.6, 130, 900, 64, "Dosovitskiy 2021, 224x224"),
    ModelFacts("CycleGAN", "gan", 460.0, 28.3, 1800, 1500, 1, "Zhu 2017, 256x256"),
    ModelFacts("Transformer", "transformer", 2.8, 60.0, 9, 1500, 64, "Vaswani 2017 base, Multi30k"),
    ModelFacts("BERT-base", "transformer", 71.0, 110.0, 500, 1500, 12, "Devlin 2019, SQuAD, 384 tokens"),
    ModelFacts("BERT-large", "transformer", 247.0, 340.0, 1300, 3000, 8, "Devlin 2019, 384 tokens"),
    ModelFacts("T5-base", "transformer", 230.0, 223.0, 900, 3000, 16, "Raffel 2020, 512 tokens", mixed=True),
    ModelFacts("GPT-2", "transformer", 292.0, 124.0, 1100, 1600, 8, "Radford 2019, 1024 tokens", mixed=True),
    ModelFacts("GPT-2-XL", "transformer", 3480.0, 1558.0, 6500, 6000, 4, "Radford 2019, 1024 tokens", True),
    ModelFacts("Llama-2-7B", "transformer", 63_700.0, 6738.0, 9000, 5000, 1,
               "Touvron 2023, 4096 tokens, checkpointed", True, True),
    ModelFacts("Llama-2-13B", "transformer", 120_000.0, 13_016.0, 14_000, 6200, 1,
               "Touvron 2023, 4096 tokens, checkpointed", True, True),
    ModelFacts("Llama-2-70B", "transformer", 610_000.0, 68_977.0, 40_000, 12_500, 1,
               "Touvron 2023, 4096 tokens, checkpointed", True, True),
    ModelFacts("Llama-3-8B", "transformer", 158_000.0, 8030.0, 18_000, 5000, 1,
               "Grattafiori 2024, 8192 tokens, checkpointed", True, True),
    ModelFacts("Mistral-7B", "transformer", 64_500.0, 7242.0, 9000, 5000, 1,
               "Jiang 2023, 4096 tokens, checkpointed", True, True),
    ModelFacts("LM", "rnn", 0.52, 14.0, 8, 300, 20, "two-layer LSTM, 200 units, WikiText-2, 35 steps"),
    ModelFacts("WLM", "rnn", 0.52, 14.0, 8, 300, 20, "word language model, as LM"),
    ModelFacts("Seq2Seq", "rnn", 6.0, 50.0, 40, 2500, 64, "two-layer LSTMs, 30 tokens, approximate"),
    ModelFacts("CTC", "rnn", 2.0, 10.0, 25, 2500, 64, "bidirectional LSTM, speech (approximate)"),
    ModelFacts("DSSM", "recommender", 0.02, 10.0, 0.2, 80, 256, "Huang 2013 (approximate)"),
    ModelFacts("DeepSpeech2", "rnn", 8.0, 35.0, 30, 2500, 20, "Amodei 2016, short utterances (approximate)"),
    ModelFacts("Recommendation", "recommender", 0.012, 24.0, 0.3, 60, 1024, "Liang 2018, ML-20M",
               host_ms=0.05),
    ModelFacts("NCF", "recommender", 0.0003, 1.8, 0.003, 120, 1024, "He 2017, ML-1M", step_host_ms=5.0),
    ModelFacts("A3C", "rl", 0.02, 1.0, 1, 300, 4, "Mnih 2016, Pong", step_host_ms=130.0),
)  # fmt: skip

MODELS: dict[str, ModelFacts] = {facts.name: facts for facts in _ALL}
_PLAIN = {name.lower().replace("-", "").replace("_", "").replace("/", ""): name for name in MODELS}
_ALIASES = {
    "bert": "BERT-base",
    "inception3": "Inception-v3",
    "inceptionv3": "Inception-v3",
    "gpt": "GPT-2",
    "deepspeech": "DeepSpeech2",
    "yolo": "YOLOv3",
    "cifar10": "ResNet-18",
    "imagenet": "ResNet-50",
    "vit": "ViT-B/16",
    "densenet": "DenseNet-121",
    "mobilenet": "MobileNet-v2",
    "resnet18cifar": "ResNet-18",
    "llama27b": "Llama-2-7B",
    "llama38b": "Llama-3-8B",
}


def find_model(name: str) -> ModelFacts | None:
    """By the names traces use: `resnet50`, `ResNet-50`, `inception3`, `vgg16`, `bert`."""
    plain = name.strip().lower().replace("-", "").replace("_", "").replace("/", "").replace(" ", "")
    canonical = _PLAIN.get(plain) or _ALIASES.get(plain)
    return MODELS[canonical] if canonical else None
