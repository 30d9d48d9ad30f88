"""Converts encoders of libraries, torch modules and ONNX graphs to Vouch's encoder contract.

::

    doors             the sources of encoders, with their options; downloads from the Hub
    choices           pooling and precision; the preprocessing, also from published files
    torch_modules     a torch network with the reference pipeline of its library; own modules
    classifiers       models of timm and torchvision without their classifier
    open_clip_models, transformers_models
                      models of these libraries
    text_towers       text towers of torch, and their tokenizers
    onnx_graphs       a foreign ONNX graph, wrapped without torch
    precision         float16 and int8, and their loss of recall
    parity            compares Vouch's image vectors with the library's vectors
    bundle            writes the directory of an encoder
    card              the card with its origin
"""
