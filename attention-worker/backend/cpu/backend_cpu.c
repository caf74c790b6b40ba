/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/family/family.h"
#include "attention-worker/cache.h"
#include "attention-worker/router.h"
#include "attention-worker/sampler.h"
