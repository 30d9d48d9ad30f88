"""Converts encoders of libraries, torch modules and ONNX graphs to Vouch's encoder contract.

::

    doors             the sources of encoders, with their options and libraries
    choices           pooling and precision
    preprocess_files  reads the preprocessing from published files
    foreign_module    a torch network with the reference pipeline of its library
    timm_models, open_clip_models, transformers_models, torchvision_models, torch_modules
                      one source of encoders each
    hub               downloads from the Hugging Face Hub
    text_towers       text towers of torch, and their tokenizers
    onnx_graphs       a foreign ONNX graph, wrapped without torch
    precision         float16 and int8, and their loss of recall
    parity            compares Vouch's image vectors with the library's vectors
    bundle            writes the directory of an encoder
    card              the card with its origin
"""
