"""Interior-point method for linear programs whose jobs are coupled by J capacity rows and one common level t.

    maximise  c.x + c_t t
    s.t.      sum_j T_mj x_mj - a_m t >= b_m      (one row per job)
              sum_j x_mj              <= h_m      (one row per job)
              sum_m g_m x_mj          <= N_j      (one row per type),   x >= 0, t free

Every Newton step eliminates the two rows of each job in closed form, so that one pass over the jobs leaves a
symmetric system of J + 1 unknowns (type prices and the level). The 2 x 2 determinants and the diagonal of
the Schur
complement are written as sums of non-negative terms (Cauchy-Binet), which keeps them accurate near the
optimum, where
D = x / z spans many orders of magnitude. Mehrotra's predictor and corrector choose the step (SIAM J.
Optim. 1992).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trainmaster.policies.gavel.problem import BoolArray, FloatArray

STEP_TO_BOUNDARY = 0.995


@njit(cache=True)
def _eliminate(T, mask, g, a, d, ds, du, dv, inv, system):
    """Fill `inv` (M11, M12, M22, det per job) and `system`, the (J+1)^2 Schur complement over prices and
    level."""
    n, J = T.shape
    system[:, :] = 0.0
    for j in range(J):
        system[j, j] = dv[j]
    for m in range(n):
        m11 = ds[m]
        m12 = 0.0
        m22 = du[m]
        tt = 0.0
        dd = 0.0
        for j in range(J):
            if mask[m, j]:
                w = d[m, j]
                m12 += T[m, j] * w
                tt += T[m, j] * T[m, j] * w
                dd += w
        m11 += tt
        m22 += dd
        cross = 0.0
        for j in range(J):
            if mask[m, j]:
                for k in range(j):
                    if mask[m, k]:
                        diff = T[m, j] - T[m, k]
                        cross += d[m, j] * d[m, k] * diff * diff
        det = cross + du[m] * tt + ds[m] * dd + ds[m] * du[m]
        inv[m, 0] = m11
        inv[m, 1] = m12
        inv[m, 2] = m22
        inv[m, 3] = det
        gg = g[m] * g[m] / det
        ag = a[m] * g[m] / det
        for j in range(J):
            if not mask[m, j]:
                continue
            wj = d[m, j]
            # determinant without column j: what is left of d_j once the job's own rows are eliminated
            without = ds[m] * du[m]
            lean = 0.0
            for i in range(J):
                if mask[m, i] and i != j:
                    wi = d[m, i]
                    without += wi * (du[m] * T[m, i] * T[m, i] + ds[m])
                    lean += wi * (T[m, j] - T[m, i])
                    for k in range(i):
                        if mask[m, k] and k != j:
                            diff = T[m, i] - T[m, k]
                            without += wi * d[m, k] * diff * diff
            system[j, j] += gg * wj * without
            for k in range(j):
                if mask[m, k]:
                    q = ds[m] + du[m] * T[m, j] * T[m, k]
                    for i in range(J):
                        if mask[m, i]:
                            q += d[m, i] * (T[m, i] - T[m, j]) * (T[m, i] - T[m, k])
                    system[j, k] -= gg * wj * d[m, k] * q
            system[J, j] += ag * wj * (lean + du[m] * T[m, j])
        system[J, J] -= a[m] * a[m] * m22 / det
    for j in range(J + 1):
        for k in range(j):
            system[k, j] = system[j, k]


@njit(cache=True)
def _solve_reduced(system, rhs, has_level):
    """Solve the (J+1) system after symmetric scaling, with two steps of iterative refinement."""
    size = system.shape[0] if has_level else system.shape[0] - 1
    scale = np.empty(size)
    for i in range(size):
        scale[i] = 1.0 / np.sqrt(max(abs(system[i, i]), 1e-300))
    scaled = np.empty((size, size))
    right = np.empty(size)
    for i in range(size):
        right[i] = rhs[i] * scale[i]
        for k in range(size):
            scaled[i, k] = system[i, k] * scale[i] * scale[k]
    regular = scaled.copy()
    for i in range(size):
        regular[i, i] += 1e-13 if i < system.shape[0] - 1 else -1e-13
    out = np.linalg.solve(regular, right)
    for _ in range(2):
        out += np.linalg.solve(regular, right - scaled @ out)
    full = np.zeros(system.shape[0])
    for i in range(size):
        full[i] = out[i] * scale[i]
    return full


@njit(cache=True)
def _max_step(x, dx, mask):
    step = 1.0
    for m in range(x.shape[0]):
        for j in range(x.shape[1]):
            if mask[m, j] and dx[m, j] < 0.0:
                step = min(step, -x[m, j] / dx[m, j])
    return step


@njit(cache=True)
def _max_step_1d(x, dx):
    step = 1.0
    for i in range(x.shape[0]):
        if dx[i] < 0.0:
            step = min(step, -x[i] / dx[i])
    return step


@njit(cache=True)
def _solve_block(m11, m12, m22, det, q1, q2):
    """Solve one job's 2 x 2 system by elimination on the larger pivot (backward stable, unlike the
    adjugate)."""
    if m11 >= m22:
        v2 = (q2 - m12 / m11 * q1) * (m11 / det)
        return (q1 - m12 * v2) / m11, v2
    v1 = (q1 - m12 / m22 * q2) * (m22 / det)
    return v1, (q2 - m12 * v1) / m22


@njit(cache=True)
def _backsolve(T, mask, g, a, inv, system, d, q1, q2, q3, qt, has_level, dy, dpi, dp):
    """Solve the normal equations for right-hand sides (q1, q2, q3, qt); add the result to (dy, dpi, dp),
    return dt."""
    n, J = T.shape
    rhs = np.zeros(J + 1)
    for j in range(J):
        rhs[j] = q3[j]
    rhs[J] = qt
    for m in range(n):
        v1, v2 = _solve_block(inv[m, 0], inv[m, 1], inv[m, 2], inv[m, 3], q1[m], q2[m])
        for j in range(J):
            if mask[m, j]:
                rhs[j] -= g[m] * d[m, j] * (T[m, j] * v1 + v2)
        rhs[J] += a[m] * v1
    sol = _solve_reduced(system, rhs, has_level)
    dt = sol[J]
    for m in range(n):
        r1 = q1[m] + a[m] * dt
        r2 = q2[m]
        for j in range(J):
            if mask[m, j]:
                w = g[m] * d[m, j] * sol[j]
                r1 -= T[m, j] * w
                r2 -= w
        v1, v2 = _solve_block(inv[m, 0], inv[m, 1], inv[m, 2], inv[m, 3], r1, r2)
        dy[m] += v1
        dpi[m] += v2
    for j in range(J):
        dp[j] += sol[j]
    return dt


@njit(cache=True)
def _direction(
    T, mask, g, a, inv, system, d, ds, du, dv, rp1, rp2, rp3, ex, es, eu, ev, rt, has_level, refine, out_x
):
    """Newton direction. `e*` = rc/x - rd per variable, so that dx = D (A^T dlambda + e).

    The row residuals A dx - rp of the computed step are fed back `refine` times: close to the optimum the
    2 x 2
    blocks are ill-conditioned and one solve alone would let the iterates drift off the rows.
    """
    n, J = T.shape
    dy = np.zeros(n)
    dpi = np.zeros(n)
    dp = np.zeros(J)
    dt = 0.0
    dslack = np.zeros(n)
    dspare = np.zeros(n)
    dfree = np.zeros(J)
    q1 = np.empty(n)
    q2 = np.empty(n)
    q3 = np.empty(J)
    for m in range(n):
        for j in range(J):
            if mask[m, j]:
                out_x[m, j] = d[m, j] * ex[m, j]
        dslack[m] = ds[m] * es[m]
        dspare[m] = du[m] * eu[m]
    for j in range(J):
        dfree[j] = dv[j] * ev[j]
    for _ in range(1 + refine):
        qt = rt
        for j in range(J):
            q3[j] = rp3[j] - dfree[j]
        for m in range(n):
            thr = 0.0
            total = 0.0
            for j in range(J):
                if mask[m, j]:
                    thr += T[m, j] * out_x[m, j]
                    total += out_x[m, j]
                    q3[j] -= g[m] * out_x[m, j]
            q1[m] = rp1[m] - thr + dslack[m] + a[m] * dt
            q2[m] = rp2[m] - total - dspare[m]
            qt += a[m] * dy[m]
        dt += _backsolve(T, mask, g, a, inv, system, d, q1, q2, q3, qt, has_level, dy, dpi, dp)
        for m in range(n):
            for j in range(J):
                if mask[m, j]:
                    out_x[m, j] = d[m, j] * (T[m, j] * dy[m] + dpi[m] + g[m] * dp[j] + ex[m, j])
            dslack[m] = ds[m] * (es[m] - dy[m])
            dspare[m] = du[m] * (dpi[m] + eu[m])
        for j in range(J):
            dfree[j] = dv[j] * (dp[j] + ev[j])
    return dy, dpi, dp, dt, dslack, dspare, dfree


@njit(cache=True)
def interior_point(T, mask, g, a, b, h, N, c, ct, has_level, x, t, iterations_max, tolerance):
    """Solve; returns (x, t, y, pi, p, slack, zx, iterations, relative complementarity, infeasibility).

    `x` and `t` are a starting point, x > 0 where mask. Multipliers come back as y, pi, p >= 0 of the
    throughput,
    time and capacity rows.
    """
    n, J = T.shape
    x = x.copy()
    slack = np.empty(n)
    spare = np.empty(n)
    free = np.empty(J)
    used = np.zeros(J)
    entries = 0
    for m in range(n):
        thr = 0.0
        total = 0.0
        for j in range(J):
            if mask[m, j]:
                thr += T[m, j] * x[m, j]
                total += x[m, j]
                used[j] += g[m] * x[m, j]
                entries += 1
        slack[m] = max(thr - a[m] * t - b[m], 1e-2)
        spare[m] = max(h[m] - total, 1e-2)
    for j in range(J):
        free[j] = max(N[j] - used[j], 1e-2 * max(N[j], 1e-3))
    # Dual start: stationarity holds exactly, every multiplier is positive.
    a_sum = 0.0
    for m in range(n):
        a_sum += a[m]
    y = np.full(n, ct / a_sum if has_level else 1.0 / max(n, 1))
    zs = y.copy()
    zv = np.empty(J)
    p = np.empty(J)
    for j in range(J):
        zv[j] = 1.0 / (J * max(N[j], 1e-3))
        p[j] = -zv[j]
    zu = np.empty(n)
    pi = np.empty(n)
    zx = np.ones((n, J))
    for m in range(n):
        top = 0.0
        for j in range(J):
            if mask[m, j]:
                top = max(top, T[m, j] * y[m] + c[m, j])
        zu[m] = 1.5 * top + 1e-3 / n
        pi[m] = -zu[m]
        for j in range(J):
            if mask[m, j]:
                zx[m, j] = -c[m, j] - T[m, j] * y[m] - pi[m] - g[m] * p[j]
    pairs = entries + 2 * n + J

    d = np.ones((n, J))
    ex = np.zeros((n, J))
    ds = np.empty(n)
    du = np.empty(n)
    es = np.empty(n)
    eu = np.empty(n)
    dv = np.empty(J)
    ev = np.empty(J)
    rp1 = np.empty(n)
    rp2 = np.empty(n)
    rp3 = np.empty(J)
    rdx = np.zeros((n, J))
    inv = np.empty((n, 4))
    system = np.empty((J + 1, J + 1))
    dx = np.zeros((n, J))
    dx2 = np.zeros((n, J))
    dzx = np.zeros((n, J))
    gap = 1e300
    infeasibility = 1e300
    best = 1e300
    bx = x.copy()
    bt = t
    by = y.copy()
    bpi = pi.copy()
    bp = p.copy()
    bslack = slack.copy()
    bzx = zx.copy()
    bgap = gap
    binf = infeasibility
    iteration = 0
    stalled = 0
    while iteration < iterations_max:
        # residuals
        mu = 0.0
        res_p = 0.0
        res_d = 0.0
        objective = ct * t
        rt = -ct if has_level else 0.0
        for j in range(J):
            rp3[j] = N[j] - free[j]
        for m in range(n):
            thr = 0.0
            total = 0.0
            for j in range(J):
                if mask[m, j]:
                    thr += T[m, j] * x[m, j]
                    total += x[m, j]
                    rp3[j] -= g[m] * x[m, j]
                    mu += x[m, j] * zx[m, j]
                    objective += c[m, j] * x[m, j]
                    r = -c[m, j] - T[m, j] * y[m] - pi[m] - g[m] * p[j] - zx[m, j]
                    rdx[m, j] = r
                    res_d = max(
                        res_d,
                        abs(r)
                        / (1e-300 + abs(T[m, j] * y[m]) + abs(pi[m]) + abs(g[m] * p[j]) + abs(c[m, j])),
                    )
            rp1[m] = b[m] + a[m] * t - thr + slack[m]
            rp2[m] = h[m] - total - spare[m]
            mu += slack[m] * zs[m] + spare[m] * zu[m]
            res_p = max(res_p, max(abs(rp1[m]), abs(rp2[m])))
            rt += a[m] * y[m]
        for j in range(J):
            mu += free[j] * zv[j]
            res_p = max(res_p, abs(rp3[j]) / max(N[j], 1e-9))
        if not has_level:
            rt = 0.0
        res_d = max(res_d, abs(rt))
        gap = (
            mu / (1e-12 + abs(objective))
            if has_level and abs(objective) > 1e-6
            else mu / (1.0 + abs(objective))
        )
        mu /= pairs
        infeasibility = max(res_p, min(res_d, 1.0))
        score = max(gap, infeasibility)
        if not (score < 1e300):
            break
        if score < best:
            best = score
            bx[:, :] = x
            bt = t
            by[:] = y
            bpi[:] = pi
            bp[:] = p
            bslack[:] = slack
            bzx[:, :] = zx
            bgap = gap
            binf = infeasibility
            stalled = 0
        else:
            stalled += 1
        if score <= tolerance or stalled >= 4:
            break
        for m in range(n):
            ds[m] = slack[m] / zs[m]
            du[m] = spare[m] / zu[m]
            es[m] = -zs[m] - (y[m] - zs[m])
            eu[m] = -zu[m] - (-pi[m] - zu[m])
            for j in range(J):
                if mask[m, j]:
                    d[m, j] = x[m, j] / zx[m, j]
                    ex[m, j] = -zx[m, j] - rdx[m, j]
        for j in range(J):
            dv[j] = free[j] / zv[j]
            ev[j] = -zv[j] - (-p[j] - zv[j])
        _eliminate(T, mask, g, a, d, ds, du, dv, inv, system)
        dy, dpi, dp, dt, dsl, dsp, dfr = _direction(
            T, mask, g, a, inv, system, d, ds, du, dv, rp1, rp2, rp3, ex, es, eu, ev, rt, has_level, 0, dx
        )
        # affine step lengths; dz = rc/x - dx/D with rc = -xz, that is dz = -z - z dx / x
        step_p = min(
            _max_step(x, dx, mask),
            _max_step_1d(slack, dsl),
            _max_step_1d(spare, dsp),
            _max_step_1d(free, dfr),
        )
        dzs = -zs - zs * dsl / slack
        dzu = -zu - zu * dsp / spare
        dzv = -zv - zv * dfr / free
        for m in range(n):
            for j in range(J):
                if mask[m, j]:
                    dzx[m, j] = -zx[m, j] - zx[m, j] * dx[m, j] / x[m, j]
        step_d = min(
            _max_step(zx, dzx, mask), _max_step_1d(zs, dzs), _max_step_1d(zu, dzu), _max_step_1d(zv, dzv)
        )
        mu_affine = 0.0
        for m in range(n):
            mu_affine += (slack[m] + step_p * dsl[m]) * (zs[m] + step_d * dzs[m])
            mu_affine += (spare[m] + step_p * dsp[m]) * (zu[m] + step_d * dzu[m])
            for j in range(J):
                if mask[m, j]:
                    mu_affine += (x[m, j] + step_p * dx[m, j]) * (zx[m, j] + step_d * dzx[m, j])
        for j in range(J):
            mu_affine += (free[j] + step_p * dfr[j]) * (zv[j] + step_d * dzv[j])
        mu_affine /= pairs
        target = max((mu_affine / mu) ** 3, 1e-3) * mu
        # corrector: rc = target - xz - dx_affine dz_affine
        for m in range(n):
            es[m] += (target - dsl[m] * dzs[m]) / slack[m]
            eu[m] += (target - dsp[m] * dzu[m]) / spare[m]
            for j in range(J):
                if mask[m, j]:
                    ex[m, j] += (target - dx[m, j] * dzx[m, j]) / x[m, j]
        for j in range(J):
            ev[j] += (target - dfr[j] * dzv[j]) / free[j]
        cs = target - dsl * dzs
        cu = target - dsp * dzu
        cv = target - dfr * dzv
        dy, dpi, dp, dt, dsl, dsp, dfr = _direction(
            T, mask, g, a, inv, system, d, ds, du, dv, rp1, rp2, rp3, ex, es, eu, ev, rt, has_level, 1, dx2
        )
        for m in range(n):
            for j in range(J):
                if mask[m, j]:
                    corr = target - dx[m, j] * dzx[m, j]
                    dzx[m, j] = corr / x[m, j] - zx[m, j] - zx[m, j] * dx2[m, j] / x[m, j]
                    dx[m, j] = dx2[m, j]
        dzs = cs / slack - zs - zs * dsl / slack
        dzu = cu / spare - zu - zu * dsp / spare
        dzv = cv / free - zv - zv * dfr / free
        step_p = min(
            _max_step(x, dx, mask),
            _max_step_1d(slack, dsl),
            _max_step_1d(spare, dsp),
            _max_step_1d(free, dfr),
        )
        step_d = min(
            _max_step(zx, dzx, mask), _max_step_1d(zs, dzs), _max_step_1d(zu, dzu), _max_step_1d(zv, dzv)
        )
        step_p = min(1.0, STEP_TO_BOUNDARY * step_p)
        step_d = min(1.0, STEP_TO_BOUNDARY * step_d)
        for m in range(n):
            for j in range(J):
                if mask[m, j]:
                    x[m, j] += step_p * dx[m, j]
                    zx[m, j] += step_d * dzx[m, j]
        slack += step_p * dsl
        spare += step_p * dsp
        free += step_p * dfr
        t += step_p * dt
        zs += step_d * dzs
        zu += step_d * dzu
        zv += step_d * dzv
        y += step_d * dy
        pi += step_d * dpi
        p += step_d * dp
        iteration += 1
    return bx, bt, by, -bpi, -bp, bslack, bzx, iteration, bgap, binf


def start_point(mask: BoolArray, g: FloatArray, counts: FloatArray) -> FloatArray:
    """A strictly feasible start: half of the proportional share on every usable type."""
    per_type = np.where(mask, g[:, None], 0.0).sum(axis=0)
    share = np.where(mask, 0.5 * counts[None, :] / np.maximum(per_type, 1e-300)[None, :], 0.0)
    total = share.sum(axis=1)
    share /= np.maximum(total / 0.5, 1.0)[:, None]
    return np.ascontiguousarray(np.where(mask, np.maximum(share, 1e-8), 0.0))
