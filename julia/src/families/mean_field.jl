"""Independent coordinates: C is diagonal, p = 2d (paper, section 2.3)."""
struct MeanField{B<:BaseDistribution} <: Family
    base::B
end

MeanField() = MeanField(Gaussian())

scale_shape(::MeanField, layout::Layout) = (0, dim(layout), 1)
