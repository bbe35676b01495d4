/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: the libpagedkv authors */

/* Memory of the device with the values of a vector in it, for the self-test's kernels.
 *
 * The one idea: a case is one launch between an upload and a download. */
#ifndef PKV_TESTS_SIMT_SELF_SUPPORT_H
#define PKV_TESTS_SIMT_SELF_SUPPORT_H

#include <cstring>
#include <cuda_runtime_api.h>
#include <vector>

template <class value_type> struct device_vector {
    value_type *data = nullptr;
    size_t count;

    explicit device_vector(size_t number) : count(number) {
        cudaMalloc(reinterpret_cast<void **>(&data), count * sizeof(value_type));
    }

    explicit device_vector(const std::vector<value_type> &values) : device_vector(values.size()) {
        cudaMemcpy(data, values.data(), count * sizeof(value_type), cudaMemcpyHostToDevice);
    }

    device_vector(const device_vector &) = delete;
    device_vector &operator=(const device_vector &) = delete;

    ~device_vector() {
        cudaFree(data);
    }

    std::vector<value_type> download() const {
        std::vector<value_type> values(count);
        cudaMemcpy(values.data(), data, count * sizeof(value_type), cudaMemcpyDeviceToHost);
        return values;
    }
};

#endif
