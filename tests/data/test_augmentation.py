import colorsys

import torch
from torch import tensor
from torch.testing import assert_close

from kinfed.data import augmentation as pixels


def colours(count=20):
    return torch.rand(count, 3, 1, 1, generator=torch.Generator().manual_seed(0)) * 255


def test_grayscale_weighs_red_green_and_blue():
    assert_close(pixels.grayscale(tensor([100.0, 200.0, 50.0]).view(1, 3, 1, 1)).flatten(), torch.full((3,), 153.0))


def test_solarise_inverts_bright_pixels_only():
    assert pixels.solarise(tensor([0.0, 99.0, 100.0, 255.0]), 100).tolist() == [0, 99, 155, 0]


def test_blend_leans_to_x_by_the_factor_and_stays_in_range():
    x, other = torch.full((3, 1, 1, 1), 200.0), torch.full((3, 1, 1, 1), 100.0)
    assert pixels.blend(x, other, tensor([0.0, 0.5, 2.0])).flatten().tolist() == [100, 150, 255]


def test_contrast_zero_is_the_mean():
    x = tensor([0.0, 100.0]).view(1, 1, 1, 2)
    assert pixels.change_contrast(x, tensor([0.0])).flatten().tolist() == [50, 50]
    assert pixels.change_contrast(x, tensor([0.5])).flatten().tolist() == [25, 75]


def test_hue_turns_as_colorsys_does():
    x = colours()
    for turn in (0.0, 0.3, -0.45):
        done = pixels.turn_hue(x, torch.full((20,), turn))
        for before, after in zip(x.view(20, 3) / 255, done.view(20, 3) / 255, strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*before.tolist())
            assert_close(after, tensor(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)), atol=1e-4, rtol=0)


def test_hue_leaves_gray_pixels_alone():
    x = torch.full((1, 3, 2, 2), 77.0)
    assert_close(pixels.turn_hue(x, tensor([0.4])), x)


def test_blur_keeps_flat_images_and_spreads_a_point_by_the_kernel():
    flat = torch.full((1, 3, 5, 5), 9.0)
    assert_close(pixels.blur(flat, 1.0, 1), flat)
    point = torch.zeros(1, 1, 5, 5)
    point[0, 0, 2, 2] = 1
    weights = pixels.kernel(0.5, 1)
    assert_close(pixels.blur(point, 0.5, 1)[0, 0, 1:4, 1:4], weights[:, None] * weights[None])
    assert_close(weights[0] / weights[1], torch.exp(tensor(-2.0)))


def test_rotate_by_a_quarter_is_rot90_and_by_nothing_is_nothing():
    x = torch.rand(2, 3, 6, 6) * 255
    assert_close(
        pixels.rotate(x, tensor([90.0, 0.0]), torch.zeros(3)),
        torch.stack([x[0].rot90(1, (1, 2)), x[1]]),
        atol=0.01,
        rtol=0,
    )


def test_rotate_fills_the_corners():
    done = pixels.rotate(torch.zeros(1, 3, 8, 8), tensor([45.0]), tensor([10.0, 20.0, 30.0]))
    assert_close(done[0, :, 0, 0], tensor([10.0, 20.0, 30.0]))


def test_rotate_turns_oblong_images_without_squeezing():
    x = torch.zeros(1, 1, 9, 5)
    x[0, 0, 2, 2] = 1  # two above the centre
    done = pixels.rotate(x, tensor([90.0]), torch.zeros(1))
    assert_close(done[0, 0, 4], tensor([1.0, 0, 0, 0, 0]), atol=1e-5, rtol=0)  # two to the left of it


def test_elastic_without_strength_is_nothing_and_with_constant_noise_moves_everything():
    x = torch.rand(2, 1, 8, 8)
    noise = torch.zeros(2, 2, 8, 8)
    assert_close(pixels.elastic(x, noise, 100.0), x, atol=1e-5, rtol=0)
    noise[:, 0] = 1  # 2 / 8 of half the width: one pixel to the right is read
    assert_close(pixels.elastic(x, noise, 2.0)[..., :-1], x[..., 1:], atol=1e-5, rtol=0)
