// SPDX-License-Identifier: Apache-2.0
// What the toy kernel multiplies by; it stands for a shared header of common/.
#pragma once

constexpr float factor = 2.0f;
