"""Encoders that were made elsewhere: from a library, a module or an ONNX graph to Vouch's contract.

::

    doors             what each door takes, and the library behind it
    choices           pooling and precision
    input_format      how a network wants its images
    preprocess_files  that, from the files which encoders are published with
    foreign_module    a network of torch, with its library's own way from an image to a vector
    pooling           tokens or a feature map → one vector
    timm_models, open_clip_models, transformers_models, torchvision_models, torch_modules
                      one door each
    hub               the Hugging Face Hub that they fetch from, and its absence
    text_towers       text towers of torch, and their tokenizers
    onnx_graphs       a foreign ONNX graph, wrapped without torch
    precision         half precision and int8, and what they cost
    parity            the library's vectors of real images against Vouch's
    texts             the same of texts
    bundle            the directory that is written
    card              its origin
"""
