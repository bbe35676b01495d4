# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: the libpagedkv authors

# Turns the JSON lines of the benches into what bench/run.sh writes; -v mode=...
#   csv     the same values as CSV
#   text    tables for reading, the memory comparison left out: it has reports of its own
#   memory  one line a workload of the memory comparison
#
# The one idea: cases that have the same metrics stand in one table, a case a row where the metrics are
# few, else a column; a case of its own kind gives one line a value.

# The value of one key of the line; strings keep their quotes.
function json_field(key, value) {
    if (!match($0, "\"" key "\" *: *(\"([^\"\\\\]|\\\\.)*\"|[^,}]*)"))
        return ""
    value = substr($0, RSTART, RLENGTH)
    sub(/^"[a-z_]*" *: */, "", value)
    return value == "null" ? "" : value
}

function json_text(key, value) {
    value = json_field(key)
    gsub(/^"|"$/, "", value)
    return value
}

# Four digits that count, without an exponent.
function readable(value) {
    if (value == "")
        return ""
    value += 0
    if (value >= 1000 || value <= -1000 || value == int(value))
        return sprintf("%.0f", value)
    return sprintf("%.4g", value)
}

BEGIN {
    num_keys = split("bench case metric unit value peer peer_value", keys, " ")
    if (mode == "csv")
        print "bench,case,metric,unit,value,peer,peer_value"
}

!/^{/ { next }

mode == "csv" {
    line = ""
    for (i = 1; i <= num_keys; i++) {
        value = json_field(keys[i])
        gsub(/\\"/, "\"\"", value)
        line = line (i > 1 ? "," : "") value
    }
    print line
    next
}

# ---- memory: one line a workload

mode == "memory" && /^{"bench":"fragmentation/ {
    metric = json_text("metric")
    name = json_text("bench")
    if (!sub(/^fragmentation\//, "", name))
        name = "sharegpt"
    if (!(name in is_known)) {
        is_known[name] = 1
        names[++num_names] = name
    }
    values[name, json_text("case"), metric] = json_field("value")
}

function print_memory(i, name, oracle, paged) {
    printf "  %-44s %8s %8s %8s %10s %9s  %s\n", "workload", "maximum", "2^n", "oracle", "first fit",
        "paged 16", "batch, paged : oracle"
    for (i = 1; i <= num_names; i++) {
        name = names[i]
        oracle = values[name, "oracle", "mean_batch"]
        paged = values[name, "paged", "mean_batch"]
        if (oracle > 0)
            printf "  %-44.44s %8.1f %8.1f %8.1f %10.1f %9.1f  %.1f : %.1f = %.1f\n", name,
                values[name, "max", "live"], values[name, "pow2", "live"],
                values[name, "oracle", "live"], values[name, "oracle-first-fit", "live"],
                values[name, "paged", "live"], paged, oracle, paged / oracle
    }
}

# ---- text: collect the cases in their order, then print them bench by bench

mode == "text" && !/^{"bench":"fragmentation/ {
    id = json_text("bench") SUBSEP json_text("case")
    metric = json_text("metric")
    if (!(id in num_metrics)) {
        ids[++num_ids] = id
        bench_of[id] = json_text("bench")
        case_of[id] = json_text("case")
        num_metrics[id] = 0
    }
    metric_of[id, ++num_metrics[id]] = metric
    unit_of[id, num_metrics[id]] = json_text("unit")
    value_of[id, num_metrics[id]] = json_field("value")
    if (json_field("peer") != "" && json_field("peer_value") != "") {
        peer_of[id, num_metrics[id]] = json_text("peer") " " readable(json_field("peer_value"))
    }
    signature[id] = signature[id] SUBSEP metric SUBSEP json_text("unit")
}

# Print the cases of one table, members[1..n]: a single one as lines of values with their peers,
function print_lines(k, id) {
    id = members[1]
    printf "\n  %s\n", case_of[id]
    for (k = 1; k <= num_metrics[id]; k++)
        printf "    %-44s %12s %s%s\n", metric_of[id, k], readable(value_of[id, k]),
            unit_of[id, k], ((id, k) in peer_of) ? "  (" peer_of[id, k] ")" : ""
}

# ... with a case a row.
function print_rows(n, i, k, id, width) {
    width = 44
    for (i = 1; i <= n; i++)
        if (length(case_of[members[i]]) > width)
            width = length(case_of[members[i]])
    id = members[1]
    printf "\n  %-*s", width, ""
    for (k = 1; k <= num_metrics[id]; k++)
        printf " %*s", width_of(id, k), metric_of[id, k] ", " unit_of[id, k]
    printf "\n"
    for (i = 1; i <= n; i++) {
        id = members[i]
        printf "  %-*s", width, case_of[id]
        for (k = 1; k <= num_metrics[id]; k++)
            printf " %*s", width_of(members[1], k), readable(value_of[id, k])
        for (k = 1; k <= num_metrics[id]; k++)
            if ((id, k) in peer_of)
                printf "  (%s: %s)", metric_of[id, k], peer_of[id, k]
        printf "\n"
    }
}

function width_of(id, k, width) {
    width = length(metric_of[id, k]) + length(unit_of[id, k]) + 2
    return width < 10 ? 10 : width
}

# ... with a case a column, at most five of them.
function print_columns(n, first, i, k, id) {
    for (first = 1; first <= n; first += 5) {
        printf "\n  %-40s", ""
        for (i = first; i <= n && i < first + 5; i++)
            printf " %20.20s", case_of[members[i]]
        printf "\n"
        id = members[first]
        for (k = 1; k <= num_metrics[id]; k++) {
            printf "  %-40s", metric_of[id, k]
            for (i = first; i <= n && i < first + 5; i++)
                printf " %20s", readable(value_of[members[i], k])
            printf " %s\n", unit_of[id, k]
        }
    }
}

function print_text(i, k, id, n, bench) {
    for (i = 1; i <= num_ids; i++) {
        id = ids[i]
        if (id in is_printed)
            continue
        if (bench_of[id] != bench) {
            bench = bench_of[id]
            printf "\n----\n\n%s\n", bench
        }
        n = 0
        for (k = i; k <= num_ids; k++)
            if (bench_of[ids[k]] == bench && signature[ids[k]] == signature[id]) {
                members[++n] = ids[k]
                is_printed[ids[k]] = 1
            }
        if (n == 1)
            print_lines()
        else if (num_metrics[id] <= 5)
            print_rows(n)
        else
            print_columns(n)
    }
}

END {
    if (mode == "memory")
        print_memory()
    if (mode == "text")
        print_text()
}
