# Iterate averaging: the fit returns a running average of the parameters instead of the last ones.

"""Average in which the weight of update t grows like `t^eta` (Shamir and Zhang, 2013)."""
struct PolynomialAveraging{V<:AbstractVector}
    eta::Float64
    average::V
end

"""Move the average towards the parameters after update `iteration`, counted from 1."""
function update!(averaging::PolynomialAveraging, flat::AbstractVector{T}, iteration::Int) where {T}
    weight = T((averaging.eta + 1) / (iteration + averaging.eta))
    averaging.average .= (1 - weight) .* averaging.average .+ weight .* flat
    return averaging
end
