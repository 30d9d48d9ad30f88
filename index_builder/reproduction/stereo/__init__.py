"""Dense stereo matching by a learned embedding of patches: a disparity for every pixel.

::

    command     measure on KITTI, where it is, and on made pairs
    pairs       rectified pairs with known disparities: KITTI's, or made of a photograph
    network     the embedding of patches, and its training by triplets
    matching    cost volume, winner takes all, and how sure the winner is
"""
