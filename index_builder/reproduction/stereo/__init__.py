"""Dense stereo matching: find the disparity of each pixel with a learned embedding of patches.

::

    command     measure on KITTI, if available, and on synthetic pairs
    pairs       rectified pairs with known disparities: KITTI or synthetic
    network     the embedding of patches, trained with triplets
    matching    cost volume, winner-takes-all, and the winner's uncertainty
"""
